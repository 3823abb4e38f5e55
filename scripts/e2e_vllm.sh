#!/usr/bin/env bash
# The plugin against a real CPU vLLM: its scheduler classes, then servers, kills and windows.
#
# usage: scripts/e2e_vllm.sh [0.24.0|0.32.0] [SCENARIO...]
#
# Makes the environment first (scripts/vllm_cpu_env.sh; minutes and 6 GB the first time).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${1:-0.24.0}
shift || true
env=$("$here/vllm_cpu_env.sh" "$version" | tail -n 1)
python=$env/bin/python

echo "vLLM $version in $env"
PYTHONPATH=$here/../src "$python" -m opprof doctor
(
  cd "$here/../tests/e2e_vllm"
  # Warnings of vLLM's own imports are not ours: the project's pytest settings stay out.
  VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR \
    PYTHONPATH=$here/../src "$python" -m pytest -q --noconftest -c /dev/null --rootdir . \
    -p no:cacheprovider -W ignore test_real_scheduler.py test_sim_scheduler_is_vllms.py
)
"$python" "$here/e2e_vllm_plugin.py" --env "$env" ${1:+--only "$@"}
if [ "$version" = 0.24.0 ] && [ $# -eq 0 ]; then
  # The load client with it: saturation, then moderate bursts, each with two profiler windows.
  "$python" "$here/e2e_client_vllm.py" --env "$env"
fi
