#!/usr/bin/env bash
# On the GPU machine: keep a carried slice, or unpack all slices and run a stage.
#
# usage: on_device.sh keep SLICE_DIR...   |   on_device.sh STAGE OUT
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=${OPPROF_GPU:-~/.cache/opprof-gpu}
parts=$root/parts
export SITE=$root/site MODEL=$root/model

if [ "$1" = keep ]; then
  shift
  mkdir -p "$parts"
  for folder in "$@"; do cp "$folder"/part.* "$parts/"; done
  ls -l "$parts"
  exit 0
fi
if [ ! -f "$SITE/.unpacked" ]; then
  mkdir -p "$SITE"
  cat "$parts"/part.* | xz -dc -T0 | tar xf - -C "$SITE"
  touch "$SITE/.unpacked"
fi
[ -f "$MODEL/tokenizer.json" ] || PYTHONPATH=$SITE python3 scripts/gpu/make_model.py "$MODEL"
export PYTHONUNBUFFERED=1
exec python3 scripts/gpu/experiments.py "$1" --site "$SITE" --model "$MODEL" \
  --work "$root/work/$1" --out "$2"
