"""Write one JSON Schema per artefact type: ``export_schemas.py DIR [--check]``.

With ``--check`` nothing is written; a schema that differs from its Struct ends with exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from opprof.artifacts import catalogue


def schemas() -> dict[str, bytes]:
    """Return file name to pretty-printed JSON Schema (draft 2020-12)."""
    result: dict[str, bytes] = {}
    for name, kind in catalogue().items():
        schema: dict[str, Any] = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **msgspec.json.schema(kind),
        }
        text = msgspec.json.format(msgspec.json.encode(schema, order="deterministic"), indent=1)
        result[f"{name}.schema.json"] = text + b"\n"
    return result


def main(arguments: list[str]) -> int:
    folder, check = Path(arguments[0]), "--check" in arguments
    wanted = schemas()
    present = {path.name for path in folder.glob("*.schema.json")}
    stale = sorted(present - set(wanted))
    for name, data in wanted.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == data:
            continue
        stale.append(name)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    if check and stale:
        print(f"schemas differ from the Structs, run `make schemas`: {', '.join(stale)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
