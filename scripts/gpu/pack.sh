#!/usr/bin/env bash
# Packs vLLM 0.24.0 and what a GPU image with torch 2.11 (Python 3.12) lacks into slices, for a
# machine without a network.
#
# usage: scripts/gpu/pack.sh DIR [SLICE_MIB]     (e.g. .gpu, which git ignores; 5-8 minutes, 2 GB)
#
# On the GPU machine: cat DIR/s*/part.* | xz -dc -T0 | tar xf - -C $SITE, then
# scripts/gpu/make_model.py $MODEL and PYTHONPATH=$SITE.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
slice=${2:-45}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=()
for glibc in 2_5 2_12 2_17 2_24 2_27 2_28 2_31 2_34 2_35 2_39; do
  platforms+=(--platform "manylinux_${glibc}_x86_64")
done
platforms+=(--platform manylinux1_x86_64 --platform manylinux2014_x86_64)
options=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}")

python3 -m pip download -q "${options[@]}" -d "$work" vllm==0.24.0
mkdir "$work/wheels"
while read -r requirement; do
  python3 -m pip download -q "${options[@]}" -d "$work/wheels" "$requirement"
done <"$here/wheels.txt"
python3 -m pip install -q --no-index --no-compile --target "$work/site" "${options[@]}" "$work"/wheels/*.whl
(
  cd "$work/site"
  python3 -m zipfile -e "$work"/vllm-0.24.0*.whl .
  # Not used by this model on this GPU: the Rust front end, FlashAttention 2, headers, pages.
  rm -rf vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2_C* vllm/third_party/deep_gemm/include \
    vllm/third_party/fmha_sm100/cutlass vllm/entrypoints/serve/instrumentator/static
)
# Structured output is not used: an empty stand-in satisfies the annotation at import.
cat >"$work/site/xgrammar.py" <<'PYTHON'
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
PYTHON
(cd "$work/site" && tar cf - . | xz -T0 -3 >"$work/site.tar.xz")
rm -rf "$out"/s*
split -b "${slice}M" -d -a 1 "$work/site.tar.xz" "$work/part."
number=1
for part in "$work"/part.*; do
  mkdir -p "$out/s$number"
  mv "$part" "$out/s$number/"
  number=$((number + 1))
done
ls -l "$out"/s*
