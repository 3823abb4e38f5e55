"""Collecting checks, and hashing each file once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from opprof._version import __version__
from opprof.artifacts.common import Outcome, SanityBlock
from opprof.artifacts.verification import VerifyCheck, VerifyReport
from opprof.code_hash import code_sha256
from opprof.errors import InputError
from opprof.files import read_bytes
from opprof.integrity.tree import hash_plain
from opprof.rules.sanity import family

T = TypeVar("T")
MEANINGS = {
    "adjudication": "later verdicts on a run, under protocols of the campaign",
    "analysis": "folders of analyses that are whole",
    "artefact": "artefacts that can be read",
    "campaign": "campaign.json, beside what was recorded at the start",
    "closing": "files beside the runs when the controller ended: ledger, states, logs, decision",
    "code": "artefacts made by the recorded version of the code",
    "copy": "copies in provenance/: sources, mapping tables, protocols, launch configurations",
    "frozen": "what the protocol was frozen with",
    "gate": "co-location gates of the hosts, and what they were made from",
    "input": "inputs that an artefact names",
    "ledger": "prior GPU use in the ledger, beside what the protocols declare",
    "manifest": "runs that used the recorded manifest",
    "mapping": "artefacts made with a recorded mapping table",
    "page": "pages that show the hashes of what lies here",
    "protocol": "artefacts judged by a protocol that is here",
    "provenance": "the campaign's own record",
    "record": "records of finished run folders",
    "recorded_file": "files of finished run folders",
    "result": "what the client left",
    "source": "what each attempt was made from",
    "sources": "source tars that yield the recorded code and client hashes",
    "state": "states that agree with attempts, checks and records",
    "timeline": "timelines that can be read",
    "trace": "traces as the client collected them",
    "tree": "files that belong here",
}
"""Name of a check to what it looked at, one line each for people."""

_LIMIT_BYTES = 256 << 20


@dataclass
class Checks:
    """Every check of one verification."""

    root: Path
    found: list[VerifyCheck] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)
    remade: set[str] = field(default_factory=set)
    """Hashes of what lies nowhere and was made again, byte for byte, for its check."""
    _hashes: dict[Path, str | None] = field(default_factory=dict)

    def add(
        self,
        name: str,
        subject: str,
        outcome: Outcome,
        reason: str,
        *,
        expected: str | None = None,
        seen: str | None = None,
    ) -> None:
        """Note one check; one that passed is only counted."""
        if outcome == "pass":
            self.passed[name] += 1
        else:
            self.found.append(VerifyCheck(name, subject, outcome, reason, expected, seen))

    def equal(
        self, name: str, subject: str, expected: object, seen: object, *, reason: str
    ) -> None:
        """Note whether what is seen is what was recorded; ``reason`` says what it means if not."""
        same: Outcome = "pass" if expected == seen else "fail"
        self.add(name, subject, same, reason, expected=_text(expected), seen=_text(seen))

    def file(self, name: str, path: Path, expected: str) -> None:
        """Hash a file and compare; a missing or unreadable one is told as such."""
        subject = self.subject(path)
        seen = self.hash(path)
        if seen is None:
            reason = "is missing" if not path.exists() else "cannot be read as a regular file"
            self.add(name, subject, "fail", reason, expected=expected)
            return
        self.equal(name, subject, expected, seen, reason="has changed")

    def hash(self, path: Path) -> str | None:
        """Return a file's SHA-256, computed once; None where it cannot be read."""
        if path not in self._hashes:
            try:
                self._hashes[path] = hash_plain(path)[0]
            except InputError:
                self._hashes[path] = None
        return self._hashes[path]

    def known(self) -> set[str]:
        """Every hash computed so far."""
        return self.remade | {digest for digest in self._hashes.values() if digest is not None}

    def read(self, name: str, path: Path, kind: type[T]) -> T | None:
        """Decode a JSON file; None, and a failed check, where it is missing or does not fit."""
        try:
            return msgspec.json.decode(read_bytes(path, limit_bytes=_LIMIT_BYTES), type=kind)
        except InputError as error:
            self.add(name, self.subject(path), "fail", error.reason)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            self.add(name, self.subject(path), "fail", f"does not fit its schema: {error}")
        return None

    def subject(self, path: Path) -> str:
        """How a path is named in the report."""
        inside = path.is_relative_to(self.root)
        return path.relative_to(self.root).as_posix() if inside else path.as_posix()

    def report(self, kind: str, root_sha256: str | None) -> VerifyReport:
        """Judge: any failure fails; nothing checked is not evaluable."""
        outcomes = {check.outcome for check in self.found}
        outcome: Outcome = "not_evaluable" if outcomes or not self.passed else "pass"
        if "fail" in outcomes:
            outcome = "fail"
        passed = family("passed_checks", list(self.passed.values()), unit="checks")
        flags = [f"{c.name}: {c.subject} {c.reason}" for c in self.found if c.outcome == "fail"]
        return VerifyReport(
            schema=1,
            kind=kind,  # type: ignore[arg-type]
            outcome=outcome,
            checks=sorted(self.found, key=lambda c: (c.outcome != "fail", c.subject, c.name)),
            passed=dict(sorted(self.passed.items())),
            root_sha256=root_sha256,
            code_version=__version__,
            code_sha256=code_sha256(),
            sanity=SanityBlock([passed], flags),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
