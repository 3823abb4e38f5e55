#!/usr/bin/env bash
# On the GPU machine: the small H200 campaign under the detached controller, in calls of ten minutes.
#
# usage: campaign.sh start SECONDS | campaign.sh wait SECONDS | campaign.sh kill SECONDS [RUN] | campaign.sh bring OUT
#
# start  unpack, freeze, materialise, start detached, watch for at most SECONDS
# kill   once RUN (default: none) has begun, SIGKILL the controller, show that nobody owns the campaign, resume, watch
# wait   watch on
# bring  decide, verify, scan, and leave tar files in OUT
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=${OPPROF_GPU:-~/.cache/opprof-gpu}
parts=$root/parts site=$root/site model=$root/model work=$root/campaign
scale=${TIME_SCALE:-0.05} kind=${KIND:-h200} serial=--serial
[ "$kind" != pair ] || serial=
export PYTHONPATH=$PWD/src:$site PYTHONUNBUFFERED=1
opprof() { python3 -m opprof "$@"; }

watch() {
  local until=$((SECONDS + $1)) state
  while [ $SECONDS -lt "$until" ]; do
    state=$(python3 -c "import json;print(json.load(open('$work/campaign/controller.json'))['phase'])")
    case $state in finished | stopped | failed) break ;; esac
    sleep 3
  done
  opprof campaign status "$work/campaign" || true
  tail -n 25 "$work/campaign/controller.log"
}

case $1 in
  start)
    mkdir -p "$site" "$work"
    if [ ! -f "$site/.unpacked" ]; then
      cat "$parts"/part.* | xz -dc -T0 | tar xf - -C "$site"
      touch "$site/.unpacked"
    fi
    [ -f "$model/tokenizer.json" ] || python3 scripts/gpu/make_model.py "$model" "${LAYERS:-12}"
    opprof doctor --host || true
    python3 scripts/machine_protocol.py "$kind" "$work/h200.toml"
    opprof protocol freeze "$work/h200.toml" --out "$work/frozen.toml"
    mkdir -m 700 -p "$work/private"
    for row in P01:128:512 P03:4096:8192; do
      opprof materialize --id "${row%%:*}" --kind synthetic --input-uniform "${row#*:}" --output-fixed 64 \
        --prefix none --arrival steady --num-requests 8192 --workload-seed 20260712 \
        --tokenizer "$model" --out "$work/private/${row%%:*}.jsonl"
    done
    plugin=$(python3 -c "
import sys; sys.path.insert(0, 'scripts')
from pathlib import Path; from vllm_cpu_server import plugin_path
print(plugin_path(Path('$work/plugin')))")
    opprof campaign start "$work/frozen.toml" --out "$work/campaign" --engine vllm --python "$(command -v python3)" \
      --private "$work/private" --var MODEL="$model" --time-scale "$scale" ${serial} ${ONLY:+--only "$ONLY"} \
      --engine-env PYTHONPATH="$plugin:$site" --engine-env HF_HUB_OFFLINE=1 --engine-env VLLM_NO_USAGE_STATS=1 \
      --engine-env VLLM_USE_FLASHINFER_SAMPLER=0
    watch "$2"
    ;;
  kill)
    until grep -q "${3:-}: attempt 1 begins" "$work/campaign/controller.log"; do sleep 1; done
    sleep "${KILL_AFTER:-10}"
    pid=$(python3 -c "import json;print(json.load(open('$work/campaign/controller.json'))['process']['pid'])")
    opprof campaign status "$work/campaign" || true
    kill -KILL "$pid"
    sleep 2
    echo "killed the controller, pid $pid"
    opprof campaign status "$work/campaign" || true
    opprof campaign resume "$work/campaign"
    watch "$2"
    ;;
  wait) watch "$2" ;;
  bring)
    opprof campaign status "$work/campaign" || true
    private=(--private "$work/private/P01.jsonl" --private "$work/private/P03.jsonl")
    opprof decide "$work/campaign" || true
    (cd "$work" && tar czf "$2/campaign.tar.gz" --exclude='*.pt.trace.json.gz' --exclude=provenance campaign frozen.toml)
    opprof verify "$work/campaign" || true
    opprof scan "$work/campaign" "${private[@]}" || true
    opprof pack "$work/campaign" --out "$work/packed.tar.gz" "${private[@]}" || true
    ls -l "$work"
    nvidia-smi --query-gpu=name,memory.used --format=csv
    ps aux | grep -c "[V]LLM::EngineCore" || true
    (cd "$work" && find campaign -name '*.pt.trace.json.gz' -size -15M | sort | head -4 | tar cf "$2/traces.tar" -T -)
    ls -l "$2"
    ;;
esac
