"""What a scan found in one file: told once each, and never more than a reader can use."""

from __future__ import annotations

from dataclasses import dataclass, field

from opprof.artifacts.scan import UNSEEN_KINDS, FindingKind, ScanFinding

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
    unseen: int = 0
    """Findings that say that nobody could look: they never end the search for private text."""

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
            Enough: the file has :data:`FINDINGS_A_FILE` of private text now.
        """
        key = (kind, inside, once or detail)
        if key in self.told:
            return
        if kind in UNSEEN_KINDS:
            if self.unseen == FINDINGS_A_FILE:
                self.tally.more = True
                return
            self.unseen += 1
        self.told.add(key)
        self.tally.findings.append(ScanFinding(self.name, inside, kind, detail, offset))
        if len(self.tally.findings) - self.unseen >= FINDINGS_A_FILE:
            raise Enough
