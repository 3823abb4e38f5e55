"""Whether the vLLM on this machine is one that the plugin was tested with. Imports nothing of vLLM.

``tested.json`` holds, for each tested version, the SHA-256 of every seam's source text (from its
first decorator to its last line, trailing blanks removed) and of the whole files. A file that is
equal as a whole is not parsed. Making the table: ``scripts/vllm_seam_table.py``.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from importlib import resources
from pathlib import Path

import msgspec

from opprof.engines.vllm.seams import SEAMS, Seam

_VERSION = re.compile(r"^__version__\s*=\s*version\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


class TestedVersion(msgspec.Struct, frozen=True):
    """One row of the table of tested versions."""

    __test__ = False

    how: str
    """What was run, and where it runs again."""
    files: dict[str, str]
    """Path below ``vllm`` to SHA-256 of the file."""
    seams: dict[str, str]
    """``path::name`` to SHA-256 of the seam's text."""


class Fit(msgspec.Struct, frozen=True):
    """The verdict on one installed vLLM."""

    version: str
    root: str
    """Folder of the ``vllm`` package."""
    tested: bool
    """The version is in the table and every seam equals the tested one."""
    differences: list[str]
    """What differs from a tested engine, in words; empty when it fits."""
    missing: list[str]
    """Hooked seams that do not exist: with any of these the plugin cannot be used at all."""
    hashes: dict[str, str]
    """``path::name`` to SHA-256 of every seam found."""

    @property
    def usable(self) -> bool:
        """Whether the hooks can be placed at all (with permission when untested)."""
        return not self.missing


def load_table() -> dict[str, TestedVersion]:
    """Return the packaged table, by version."""
    data = resources.files("opprof.engines.vllm").joinpath("tested.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, TestedVersion])


def find_package() -> Path | None:
    """Return the folder of the installed ``vllm`` package, without importing it; None if absent."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def read_version(root: Path) -> str:
    """Return the package's own version (``_version.py``), without a local part such as ``+cpu``."""
    try:
        match = _VERSION.search((root / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        match = None
    return match.group(1).partition("+")[0] if match else "unknown"


def seam_key(seam: Seam) -> str:
    """Return the seam's key in the table."""
    return f"{seam.file}::{seam.name}"


def hash_seams(source: str, names: set[str]) -> dict[str, str]:
    """Return SHA-256 by name of the definitions in ``source`` that are named in ``names``.

    Raises:
        SyntaxError: the source is no Python of this interpreter.
    """
    lines = source.splitlines()
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            name = prefix + node.name
            if name in names:
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                text = "\n".join(line.rstrip() for line in lines[first - 1 : node.end_lineno])
                found[name] = hashlib.sha256(text.encode()).hexdigest()
            if isinstance(node, ast.ClassDef):
                visit(node.body, name + ".")

    visit(ast.parse(source).body, "")
    return found


def scan(root: Path, version: str, row: TestedVersion | None) -> dict[str, str]:
    """Return the hashes of the seams below ``root``; files that equal ``row``'s are not parsed."""
    by_file: dict[str, set[str]] = {}
    for seam in SEAMS:
        if not seam.only or version in seam.only:
            by_file.setdefault(seam.file, set()).add(seam.name)
    hashes: dict[str, str] = {}
    for file, names in by_file.items():
        try:
            data = (root / file).read_bytes()
        except OSError:
            continue
        if row is not None and row.files.get(file) == hashlib.sha256(data).hexdigest():
            keys = [f"{file}::{name}" for name in names]
            hashes.update({key: row.seams[key] for key in keys if key in row.seams})
            continue
        try:
            found = hash_seams(data.decode("utf-8"), names)
        except (SyntaxError, UnicodeDecodeError):
            continue
        hashes.update({f"{file}::{name}": value for name, value in found.items()})
    return hashes


def check(root: Path, table: dict[str, TestedVersion] | None = None) -> Fit:
    """Compare the package at ``root`` with the table of tested versions."""
    table = load_table() if table is None else table
    version = read_version(root)
    row = table.get(version)
    hashes = scan(root, version, row)
    differences: list[str] = []
    if row is None:
        known = ", ".join(sorted(table)) or "none"
        differences.append(f"vLLM {version} was never tested (tested: {known})")
        row, version_of_row = _nearest(table, version)
    else:
        version_of_row = version
    missing = []
    for seam in SEAMS:
        key = seam_key(seam)
        if seam.only and version not in seam.only:
            continue
        if key not in hashes:
            differences.append(f"{key} does not exist ({seam.why})")
            if seam.use == "hook" and not seam.only:
                missing.append(key)
        elif row is not None and row.seams.get(key) != hashes[key]:
            differences.append(f"{key} differs from vLLM {version_of_row} ({seam.why})")
    return Fit(
        version=version,
        root=str(root),
        tested=not differences,
        differences=differences,
        missing=missing,
        hashes=hashes,
    )


def _nearest(table: dict[str, TestedVersion], version: str) -> tuple[TestedVersion | None, str]:
    """Return the newest tested row that is not newer than ``version``, else the oldest."""
    if not table:
        return None, ""
    ordered = sorted(table, key=_release)
    older = [name for name in ordered if _release(name) <= _release(version)]
    name = older[-1] if older else ordered[0]
    return table[name], name


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
