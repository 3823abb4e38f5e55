"""The run's folder: what may not exist before, what appears when, the result last."""

from __future__ import annotations

from pathlib import Path

import msgspec

from opprof.artifacts.run import ManifestSummary, Timeline
from opprof.client.facts import RunFacts
from opprof.client.results import Artefacts, Binding, sanity_of
from opprof.errors import EnvironmentFailure, StateConflict
from opprof.files import read_bytes, sha256_bytes, sha256_file, write_atomic

_FILES = ("result.json", "requests.jsonl", "timeline.json", "segments.jsonl", "sanity.json")


class OutputFolder:
    """``--result-dir``: the ``client`` folder of a run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests = folder / "requests.jsonl"
        # In the contract's layout the summary lies in the run directory above ``client/``.
        in_run = folder.name == "client"
        holder = folder.resolve().parent if in_run else folder
        self.manifest_summary = holder / "manifest.sha256"
        self.traces = holder / "traces" if in_run else None
        """Where collected traces go; None outside a run directory."""

    def check(self) -> None:
        """Refuse a folder that holds (a part of) an earlier run: nothing is overwritten.

        Raises:
            StateConflict: names the file that is there.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise StateConflict("is no folder", path=self.folder)
        for name in _FILES:
            if (self.folder / name).exists():
                raise StateConflict(
                    "an earlier run wrote this file; choose another --result-dir",
                    path=self.folder / name,
                )

    def create(self, summary: ManifestSummary) -> None:
        """Make the folder and put the manifest's summary into the run directory.

        Raises:
            StateConflict: another manifest's summary lies there.
            EnvironmentFailure: the folder cannot be made.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot make the folder: {error.strerror or error}", path=self.folder
            ) from error
        data = _pretty(summary)
        if self.manifest_summary.exists():
            if read_bytes(self.manifest_summary) != data:
                raise StateConflict(
                    "the run directory belongs to another manifest", path=self.manifest_summary
                )
        else:
            write_atomic(self.manifest_summary, data)

    def write_timeline(self, timeline: Timeline) -> None:
        """Replace ``timeline.json``."""
        write_atomic(self.folder / "timeline.json", _pretty(timeline))

    def write_all(self, artefacts: Artefacts, facts: RunFacts, binding: Binding) -> None:
        """Write segments, timeline and sanity, then the result.

        Raises:
            EnvironmentFailure: a file cannot be written; no result appears.
        """
        lines = b"".join(msgspec.json.encode(line) + b"\n" for line in artefacts.segments)
        write_atomic(self.folder / "segments.jsonl", lines)
        timeline = _pretty(artefacts.timeline)
        write_atomic(self.folder / "timeline.json", timeline)
        inputs = {
            "client/requests.jsonl": sha256_file(self.requests),
            "client/timeline.json": sha256_bytes(timeline),
            "client/segments.jsonl": sha256_bytes(lines),
        }
        sanity = sanity_of(artefacts, facts, binding, inputs)
        write_atomic(self.folder / "sanity.json", _pretty(sanity))
        result = msgspec.structs.replace(artefacts.result, sanity=sanity.sanity)
        write_atomic(self.folder / "result.json", _pretty(result))


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
