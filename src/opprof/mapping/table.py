"""Mapping tables as data: the Structs of a table file, and reading one with every check.

Format history
    schema 1    version, title, provenance, pattern sets, rules with examples, unmatched names.

A table is UTF-8 text with LF line ends; its SHA-256 is over the file's bytes, so ``sha256sum``
gives the same value. Source: protocol, "Kernel-to-operator-family mapping"; contract, section 4.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from opprof.errors import InputError, SchemaError
from opprof.files import read_bytes, sha256_bytes
from opprof.mapping.classify import CompiledRule, MappingTable, is_plain
from opprof.mapping.families import FAMILY_PRIORITY, RULE_FAMILIES
from opprof.toml_file import decode_toml

BUILTIN_VERSIONS: tuple[str, ...] = ("v1", "v2")
_LIMIT_BYTES = 1 << 20

Text = Annotated[str, Meta(min_length=1)]


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that its rule must catch: name and enclosing scopes, outermost first."""

    name: Text
    scopes: list[Text] = []


class Unmatched(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that no rule catches, and why that is right."""

    name: Text
    reason: Text
    scopes: list[Text] = []


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule: it hits when every list that it has, hits, and no ``except`` list does.

    Entries are regular expressions searched without regard to case, or ``@set``.
    """

    id: Annotated[str, Meta(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)*$")]
    family: str
    priority: int
    description: Text
    """Quotes the protocol's words; says which reading they needed."""
    examples: list[Example]
    names: list[Text] = []
    """Any of them, searched in the kernel's name."""
    scopes: list[Text] = []
    """Any of them, searched in any enclosing scope."""
    except_names: list[Text] = []
    except_scopes: list[Text] = []


class TableFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: Literal[1]
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    title: Text
    provenance: Text
    rules: Annotated[list[Rule], Meta(min_length=1)]
    sets: dict[str, list[Text]] = {}
    unmatched: list[Unmatched] = []


class LoadedTable(Struct, frozen=True):
    """A table file with its source, its hash and its compiled form."""

    source: str
    sha256: str
    file: TableFile
    table: MappingTable


def load_table(which: str | Path) -> MappingTable:
    """Return the built-in table ``v1`` or ``v2``, or the table in a file.

    A string that names no built-in version is taken for a path.

    Raises:
        InputError: the file is missing, is no UTF-8 TOML with LF line ends, has an unknown key or
            family, a bad regular expression, a duplicate id, or priorities out of order.
    """
    return load_table_file(which).table


def load_table_file(which: str | Path) -> LoadedTable:
    """Return the table with its parsed file: what :func:`load_table` checks, and the examples."""
    if isinstance(which, str) and which in BUILTIN_VERSIONS:
        return _builtin(which)
    path = Path(which)
    if isinstance(which, str) and not path.suffix and not path.exists():
        known = ", ".join(BUILTIN_VERSIONS)
        raise InputError(f"no mapping table {which!r}: neither a built-in one ({known}) nor a file")
    return parse_table(read_bytes(path, limit_bytes=_LIMIT_BYTES), source=str(path))


@lru_cache
def _builtin(version: str) -> LoadedTable:
    """Read a table of the package once: compiling its rules takes longer than a short run."""
    path = resources.files("opprof.mapping") / "tables" / f"{version}.toml"
    return parse_table(path.read_bytes(), source=f"{version}.toml")


def parse_table(data: bytes, *, source: str) -> LoadedTable:
    """Parse and check the bytes of a table; ``source`` stands in messages for the file.

    Raises:
        InputError: see :func:`load_table`.
    """
    if b"\r" in data or data.startswith(b"\xef\xbb\xbf"):
        raise InputError("a table has LF line ends and no byte order mark", path=source)
    try:
        file = msgspec.convert(decode_toml(data, source=source), TableFile)
    except msgspec.ValidationError as error:
        raise SchemaError(str(error), path=source) from error
    _check_order(file, source)
    sets = {name: _expand(file.sets, name, source) for name in file.sets}
    digest = sha256_bytes(data)
    compiled = tuple(
        CompiledRule(
            id=rule.id,
            family=rule.family,
            priority=rule.priority,
            names=_patterns(rule, "names", sets, source),
            scopes=_patterns(rule, "scopes", sets, source),
            except_names=_patterns(rule, "except_names", sets, source),
            except_scopes=_patterns(rule, "except_scopes", sets, source),
        )
        for rule in file.rules
    )
    table = MappingTable(file.version, digest, file.title, compiled)
    return LoadedTable(source=source, sha256=digest, file=file, table=table)


def _check_order(file: TableFile, source: str) -> None:
    """Ids are unique; families are known; priorities are the family's own and never descend."""
    seen: set[str] = set()
    last = 0
    for index, rule in enumerate(file.rules):
        where = f"rules[{index}] {rule.id!r}"
        if rule.id in seen:
            raise InputError(f"{where}: duplicate id", path=source)
        seen.add(rule.id)
        if rule.family not in RULE_FAMILIES:
            known = ", ".join(RULE_FAMILIES)
            raise InputError(f"{where}: family {rule.family!r} is not one of {known}", path=source)
        expected = FAMILY_PRIORITY[rule.family]
        if rule.priority != expected:
            raise InputError(
                f"{where}: priority {rule.priority}, but {rule.family} has {expected}", path=source
            )
        if rule.priority < last:
            raise InputError(
                f"{where}: priority {rule.priority} after {last}; priorities must ascend",
                path=source,
            )
        last = rule.priority
        if not rule.names and not rule.scopes:
            raise InputError(f"{where}: has neither names nor scopes", path=source)


def _expand(sets: dict[str, list[str]], name: str, source: str) -> tuple[str, ...]:
    """Return the patterns of a set, each proved to compile alone."""
    where = f"sets.{name}"
    if not sets[name]:
        raise InputError(f"{where}: is empty", path=source)
    for position, pattern in enumerate(sets[name]):
        if pattern.startswith("@"):
            raise InputError(f"{where}[{position}]: a set cannot refer to a set", path=source)
        _check_pattern(pattern, f"{where}[{position}]", source)
    return tuple(sets[name])


def _patterns(
    rule: Rule, key: str, sets: dict[str, tuple[str, ...]], source: str
) -> tuple[str, ...]:
    """Return a rule's list with its sets put in."""
    entries: list[str] = getattr(rule, key)
    result: list[str] = []
    for position, entry in enumerate(entries):
        where = f"rule {rule.id!r} {key}[{position}]"
        if not entry.startswith("@"):
            _check_pattern(entry, where, source)
            result.append(entry)
        elif entry[1:] in sets:
            result.extend(sets[entry[1:]])
        else:
            raise InputError(f"{where}: no set {entry[1:]!r}", path=source)
    return tuple(result)


def _check_pattern(pattern: str, where: str, source: str) -> None:
    if is_plain(pattern):
        return
    try:
        # Wrapped as it will be in the alternation, where a global flag such as (?i) is an error.
        groups = re.compile(f"(?:{pattern})", re.IGNORECASE).groups
    except re.error as error:
        raise InputError(
            f"{where}: bad regular expression {pattern!r}: {error}", path=source
        ) from error
    if groups:
        raise InputError(
            f"{where}: {pattern!r} captures a group; write (?:...) instead", path=source
        )
