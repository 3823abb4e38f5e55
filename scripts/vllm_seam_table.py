"""Add a vLLM to the plugin's table of tested versions, after its end-to-end run has passed.

usage: PYTHONPATH=src python scripts/vllm_seam_table.py FOLDER_OF_VLLM "how it was tested"
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import msgspec

from opprof.engines.vllm import fit
from opprof.engines.vllm.seams import SEAMS


def main() -> None:
    """Rewrite ``tested.json`` with the row of the given package."""
    root, how = Path(sys.argv[1]), sys.argv[2]
    version = fit.read_version(root)
    hashes = fit.scan(root, version, None)
    wanted = [seam for seam in SEAMS if not seam.only or version in seam.only]
    absent = [fit.seam_key(seam) for seam in wanted if fit.seam_key(seam) not in hashes]
    if absent:
        raise SystemExit(f"vLLM {version} lacks: {', '.join(absent)}")
    files = {
        file: hashlib.sha256((root / file).read_bytes()).hexdigest()
        for file in sorted({seam.file for seam in wanted})
    }
    target = Path(fit.__file__).with_name("tested.json")
    table = fit.load_table() if target.exists() else {}
    table[version] = fit.TestedVersion(how=how, files=files, seams=dict(sorted(hashes.items())))
    ordered = {name: table[name] for name in sorted(table)}
    target.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    print(f"vLLM {version}: {len(hashes)} seams in {len(files)} files")


if __name__ == "__main__":
    main()
