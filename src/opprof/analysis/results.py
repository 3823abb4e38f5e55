"""The four artefacts of one run as one value."""

from __future__ import annotations

from dataclasses import dataclass

from opprof.artifacts.common import Gate, RunIdentity
from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.kernels import Kernels
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste


@dataclass(frozen=True)
class RunAnalysis:
    """Everything ``opprof analyze`` says of one run."""

    layer1: Layer1Summary
    kernels: Kernels
    waste: Waste
    sanity: Sanity
    unusable: tuple[str, ...] = ()
    """Trace files that are missing or could not be read, each with place and reason."""

    @property
    def run(self) -> RunIdentity:
        """Who the run is."""
        return self.sanity.run

    @property
    def failed(self) -> list[Gate]:
        """Gates with the outcome ``fail``."""
        return [gate for gate in self.sanity.gates if gate.outcome == "fail"]
