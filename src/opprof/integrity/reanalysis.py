"""Analyses that a decision made in memory, after an amendment: the stored ones are older.

Those leave no file, so their hashes can only be recomputed by making them again, which the same
code does to the byte (invariant F4).
"""

from __future__ import annotations

from pathlib import Path

from opprof.analysis.results import RunAnalysis
from opprof.artifacts.common import Provenance
from opprof.artifacts.sanity import Sanity
from opprof.code_hash import code_sha256
from opprof.errors import OpprofError
from opprof.files import sha256_bytes, sha256_file
from opprof.integrity.derived import OTHER_CODE
from opprof.protocol import Protocol, load_protocol

_ARTEFACTS = ("layer1", "kernels", "waste", "sanity")


class Reanalysis:
    """Hashes of a campaign's runs as another protocol has them; each run is analysed once."""

    def __init__(self, campaign: Path) -> None:
        """Remember the campaign's folder; nothing is read before it is asked for."""
        self._campaign = campaign
        self._made: dict[tuple[str, str], RunAnalysis | None] = {}

    def __call__(self, name: str, named: Provenance) -> str | None:
        """Return the hash of ``<run>/<artefact>.json``; None where the stored one is meant, or the
        protocol or the run is not here; :data:`OTHER_CODE` where other code made it."""
        run, _, file = name.partition("/")
        artefact = file.removesuffix(".json")
        protocol_sha256 = named.protocol_sha256
        if protocol_sha256 is None or artefact not in _ARTEFACTS or ".." in Path(run).parts:
            return None
        if self._stored(run) == protocol_sha256:
            return None
        if named.code_sha256 != code_sha256():
            return OTHER_CODE
        key = (run, protocol_sha256)
        if key not in self._made:
            self._made[key] = self._analyse(run, protocol_sha256)
        analysis = self._made[key]
        if analysis is None:
            return None
        from opprof.analysis.write import encode

        return sha256_bytes(encode(getattr(analysis, artefact)))

    def _stored(self, run: str) -> str | None:
        """The protocol of the run's own analysis."""
        import msgspec

        path = self._campaign / "runs" / run / "analysis" / "sanity.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Sanity).provenance.protocol_sha256
        except (OSError, msgspec.DecodeError, RecursionError):
            return None

    def _analyse(self, run: str, protocol_sha256: str) -> RunAnalysis | None:
        from opprof.analysis.run import analyze_run

        try:
            protocol = self._protocol(protocol_sha256)
            folder = self._campaign / "runs" / run
            return None if protocol is None else analyze_run(folder, protocol)
        except OpprofError:
            return None  # then its input is told as one that has changed

    def _protocol(self, wanted: str) -> Protocol | None:
        kept = sorted((self._campaign / "protocols").glob("*.toml"))
        for path in (self._campaign / "protocol.toml", *kept):
            if path.is_file() and sha256_file(path) == wanted:
                return load_protocol(path)
        return None
