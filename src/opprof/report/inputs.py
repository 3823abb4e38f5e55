"""What a report is made from: the artefacts of every run, and the comparison of all of them."""

from __future__ import annotations

from msgspec import Struct

from opprof.analysis.gates import CATALOGUE
from opprof.artifacts.common import Gate, Provenance, RunIdentity, SanityBlock
from opprof.artifacts.comparison import Comparison
from opprof.artifacts.composition import Layer1Summary
from opprof.artifacts.decision import Decision
from opprof.artifacts.kernels import Kernels, Window, WindowFamilies
from opprof.artifacts.run import Interval
from opprof.artifacts.sanity import Sanity
from opprof.artifacts.waste import Waste
from opprof.report.blocks import Flag
from opprof.report.downsample import StepSeries
from opprof.report.formats import plot_text
from opprof.words import plural

MEASURED, SIMULATED = "measured runs", "simulated runs"
"""Titles of a page's two parts."""


class RunView(Struct, frozen=True):
    """One run's artefacts; a missing file is null and is said so, never guessed."""

    layer1: Layer1Summary | None = None
    kernels: Kernels | None = None
    waste: Waste | None = None
    sanity: Sanity | None = None
    intervals: tuple[Interval, ...] = ()
    """Of ``client/timeline.json``; empty where only the analysis was given."""
    steps: StepSeries | None = None
    """Of the Layer-1 stream; null where only the analysis was given."""
    note: str = ""
    """Tells runs apart whose identities coincide, such as two attempts; else empty."""
    verdicts: str = ""
    """Both verdicts, where a campaign judged the run's kept data again; else empty."""
    steps_reason: str = "only the analysis was given: name the run's folder too to draw its steps"

    @property
    def artefacts(self) -> list[Layer1Summary | Kernels | Waste | Sanity]:
        """The artefacts that are there."""
        found = (self.layer1, self.kernels, self.waste, self.sanity)
        return [artefact for artefact in found if artefact is not None]

    @property
    def identity(self) -> RunIdentity:
        """Who the run is (the loader refuses a run without any artefact)."""
        return self.artefacts[0].run

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate once, failures first, then not evaluable, then passed."""
        merged: dict[tuple[str, str], Gate] = {}
        for artefact in reversed(self.artefacts):
            for gate in artefact.gates:
                merged.setdefault((gate.scope, gate.name), gate)
        rank = {"fail": 0, "not_evaluable": 1, "pass": 2}
        return tuple(sorted(merged.values(), key=lambda g: (rank[g.outcome], g.scope, g.name)))

    @property
    def red_flags(self) -> list[str]:
        """Every red flag once, in the order of the artefacts."""
        flags = [] if self.sanity is None else list(self.sanity.red_flags)
        flags += [flag for artefact in self.artefacts for flag in artefact.sanity.red_flags]
        return list(dict.fromkeys(flags))

    @property
    def failed_gates(self) -> list[Gate]:
        """Gates with the outcome ``fail``."""
        return [gate for gate in self.gates if gate.outcome == "fail"]

    @property
    def invalidating(self) -> list[Gate]:
        """Failed gates that take the run's own figures away, not only its breakdown or a window."""
        return [gate for gate in self.failed_gates if reach(gate) == "run"]

    @property
    def invalid(self) -> bool:
        """True when a gate that reaches the whole run failed, or a red flag is up."""
        return bool(self.invalidating or self.red_flags)

    @property
    def plain_label(self) -> str:
        """``P03 · C00 · saturation``, with the role where it is not primary."""
        run = self.identity
        parts = [run.pattern, run.config, run.load_point]
        return " · ".join(parts if run.role == "primary" else [*parts, run.role])

    @property
    def label(self) -> str:
        """The plain label, with what tells the run apart where identities coincide."""
        return f"{self.plain_label} · {self.note}" if self.note else self.plain_label

    @property
    def windows(self) -> list[Window]:
        """All windows by window and rank."""
        windows = [] if self.kernels is None else self.kernels.windows
        return sorted(windows, key=lambda w: (w.window, w.rank))

    def windows_under(self, version: str) -> list[WindowFamilies]:
        """Return the windows under another mapping table; empty where it was not applied."""
        if self.kernels is None:
            return []
        other = self.kernels.alternatives.get(version)
        if other is not None:
            return sorted(other.windows, key=lambda w: (w.window, w.rank))
        return [w.alternatives[version] for w in self.windows if version in w.alternatives]

    @property
    def other_mappings(self) -> list[str]:
        """The other tables under which the run was also attributed."""
        if self.kernels is None:
            return []
        names = set(self.kernels.alternatives)
        names.update(name for window in self.kernels.windows for name in window.alternatives)
        return sorted(names)

    def provenances(self) -> list[tuple[str, Provenance]]:
        """Return each artefact's name with its hashes."""
        return [(name_of(artefact), artefact.provenance) for artefact in self.artefacts]

    def sanity_blocks(self) -> list[tuple[str, SanityBlock]]:
        """Return each artefact's name with its sanity block."""
        return [(name_of(artefact), artefact.sanity) for artefact in self.artefacts]


class ReportInput(Struct, frozen=True):
    """Everything on one page."""

    runs: tuple[RunView, ...]
    title: str = "OpProf report"
    comparison: Comparison | None = None
    comparison_reason: str = "the runs were not compared"
    """Why there is no comparison, where there is none."""
    decision: Decision | None = None
    """Shown first, where a decision was given or made."""
    decision_trouble: tuple[str, ...] = ()
    """What a reader must know of the decision and the runs beside it."""
    protocol_trouble: tuple[str, ...] = ()
    """Analyses that name another protocol than the one that is bound."""
    analysed_again: tuple[str, ...] = ()
    """Runs whose own analysis is of another protocol, and which are judged anew here."""

    parts: tuple[ReportInput, ...] = ()
    """The measured and the simulated runs, each compared among themselves, where the page holds
    both; ``title`` says which, and ``comparison`` above is null then."""

    @property
    def compared(self) -> tuple[ReportInput, ...]:
        """What holds comparisons: the parts, else the whole page."""
        return self.parts or (self,)

    @property
    def tag(self) -> str:
        """Keeps the idents of the page's second part apart from those of its first."""
        return "-simulated" if self.title == SIMULATED else ""

    def titled(self, title: str) -> str:
        """Return a section's title with the part that it is about."""
        return f"{title}: {self.title}" if self.title in (MEASURED, SIMULATED) else title

    def run_named(self, name: str) -> RunView | None:
        """Return the run with this identity, which the comparison speaks of."""
        return next((run for run in self.runs if run.identity.name == name), None)


def reach(gate: Gate) -> str:
    """Return what the gate's failure takes away; a gate the catalogue does not know: the run."""
    known = CATALOGUE.get(gate.name)
    return "run" if known is None else known.reach


def name_of(artefact: Layer1Summary | Kernels | Waste | Sanity) -> str:
    """Return the artefact's file name without its ending."""
    return {Layer1Summary: "layer1", Kernels: "kernels", Waste: "waste", Sanity: "sanity"}[
        type(artefact)
    ]


def flags_of(run: RunView) -> tuple[Flag, ...]:
    """Return the marks a run carries in every table, gravest first."""
    identity = run.identity
    flags = []
    if identity.simulated:
        flags.append(Flag("SIMULATED", "warn", "Written by the embedded engine: no measurement."))
    if run.invalid:
        gates = plural(len(run.invalidating), "failed gate")
        flags.append(Flag("INVALID", "fail", f"{gates}, {plural(len(run.red_flags), 'red flag')}."))
    if identity.drain_quarantined:
        flags.append(
            Flag("QUARANTINED", "warn", "The drain exceeded its allowance (A-P3-5): still usable.")
        )
    if identity.time_scale != 1.0:
        text = f"TIME × {identity.time_scale:g}"
        flags.append(Flag(text, "warn", "The protocol's durations were scaled: no protocol run."))
    if run.kernels is not None and run.kernels.breakdown_valid is False:
        meaning = "A profile window failed the representativeness gate."
        flags.append(Flag("BREAKDOWN ✗", "ne", meaning))
    return tuple(flags)


def plot_label(run: RunView) -> str:
    """Return the run's label for a figure's axis, escaped, with its marks on a second line."""
    marks = " · ".join(flag.label for flag in flags_of(run))
    label = plot_text(run.label)
    return f"{label}<br><b>{plot_text(marks)}</b>" if marks else label
