"""What a scan found in one file: told once each, and never more than a reader can use."""

from __future__ import annotations

from dataclasses import dataclass, field

from opprof.artifacts.scan import FindingKind, ScanFinding

FINDINGS_A_FILE = 20


class Enough(Exception):
    """One file has as many findings as are told."""


@dataclass
class Tally:
    """What was looked at, of one file."""

    findings: list[ScanFinding] = field(default_factory=list)
    more: bool = False
    streams: int = 0
    stream_bytes: int = 0
    public: int = 0


@dataclass
class FileLog:
    """Findings of one file, each told once."""

    tally: Tally
    name: str
    told: set[tuple[str, str, str]] = field(default_factory=set)

    def add(
        self,
        kind: FindingKind,
        inside: str,
        detail: str,
        offset: int | None = None,
        *,
        once: str = "",
    ) -> None:
        """Tell a finding; ``once`` names what makes two of them the same, else the detail does.

        Raises:
            Enough: the file has :data:`FINDINGS_A_FILE` now.
        """
        key = (kind, inside, once or detail)
        if key in self.told:
            return
        self.told.add(key)
        self.tally.findings.append(ScanFinding(self.name, inside, kind, detail, offset))
        if len(self.tally.findings) >= FINDINGS_A_FILE:
            raise Enough
