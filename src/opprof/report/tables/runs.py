"""The runs themselves: overview, provenance and sanity families."""

from __future__ import annotations

from opprof.artifacts.common import Provenance, SanityBlock
from opprof.report.blocks import Cell, Flag, Table
from opprof.report.formats import number
from opprof.report.inputs import ReportInput, RunView, flags_of
from opprof.report.tables.cells import RUN, names, numbers, run_cell, text, value_cell
from opprof.words import plural


def overview(ident: str, report: ReportInput) -> Table:
    """Return one row a run: who it is, what it may be used for, and how its gates fell."""
    rows = []
    for run in report.runs:
        ranks = len({window.rank for window in run.windows})
        accepted = sum(window.accepted for window in run.windows)
        rows.append(
            (
                run_cell(run),
                _usable(run),
                *(_count(run, outcome) for outcome in ("fail", "not_evaluable", "pass")),
                value_cell(len(run.red_flags)),
                text(f"{accepted} of {len(run.windows)}", f"on {plural(ranks, 'rank')}"),
                _breakdown(run),
                text(_engine(run)),
            )
        )
    return Table(
        ident=ident,
        caption="Runs in this report",
        columns=(
            RUN,
            *names("standing"),
            *numbers("gates failed", "not evaluable", "passed", "red flags"),
            *names("traces accepted", "representative", "engine"),
        ),
        rows=tuple(rows),
    )


def _usable(run: RunView) -> Cell:
    if run.red_flags:
        return Cell("✗ invalid", tone="fail", sub="red flag", title=run.red_flags[0])
    if run.invalidating:
        return Cell("✗ invalid", tone="fail", sub="failed gate", title=run.invalidating[0].reason)
    if run.identity.drain_quarantined:
        return Cell("usable, quarantined", tone="warn")
    if run.identity.simulated:
        return Cell("simulated", tone="warn", sub="no measurement")
    if any(gate.outcome == "not_evaluable" for gate in run.gates):
        return Cell("? not fully judged", tone="ne", sub="some gates not evaluable")
    return Cell("✓ valid", tone="pass")


def _count(run: RunView, outcome: str) -> Cell:
    count = sum(gate.outcome == outcome for gate in run.gates)
    tones = {"fail": "fail", "not_evaluable": "ne", "pass": "pass"}
    if count == 0:
        return Cell("0", tone="muted", sort=0.0)
    return Cell(str(count), tone=tones[outcome], sort=float(count))  # type: ignore[arg-type]


def _breakdown(run: RunView) -> Cell:
    if run.kernels is None or run.kernels.breakdown_valid is None:
        return Cell("? not evaluable", tone="ne")
    reasons = "; ".join(run.kernels.breakdown_reasons)
    if run.kernels.breakdown_valid:
        return Cell("✓ yes", tone="pass", title=reasons)
    return Cell("✗ no", tone="fail", title=reasons)


def _engine(run: RunView) -> str:
    return "" if run.layer1 is None else f"{run.layer1.engine} {run.layer1.engine_version}"


def provenance(ident: str, report: ReportInput) -> Table:
    """Return the hashes that tie every artefact to its protocol, mapping and code."""
    rows = []
    for run in report.runs:
        for name, origin in run.provenances():
            rows.append(
                (
                    run_cell(run),
                    text(f"{name}.json"),
                    _hash(origin.protocol_id, origin.protocol_sha256, "no protocol bound"),
                    _hash(origin.mapping_version, origin.mapping_sha256, "no mapping used"),
                    _hash(origin.code_version, origin.code_sha256, ""),
                    text(str(len(origin.inputs))),
                )
            )
    return Table(
        ident=ident,
        caption="What each artefact was made with",
        columns=(RUN, *names("artefact", "protocol", "mapping", "code"), *numbers("input files")),
        rows=tuple(rows),
    )


def _hash(label: str | None, digest: str | None, missing: str) -> Cell:
    if digest is None:
        return Cell(label or "none", sub=missing, tone="ne")
    return Cell(label or "", sub=digest, mono=True)


def inputs(ident: str, run: RunView) -> Table:
    """Return every input file of a run with its SHA-256."""
    files: dict[str, str] = {}
    for _, origin in run.provenances():
        files.update(origin.inputs)
    rows = [(Cell(name, mono=True), Cell(files[name], mono=True)) for name in sorted(files)]
    return Table(
        ident=ident,
        caption=f"Input files of {run.label}",
        columns=names("file", "SHA-256"),
        rows=tuple(rows),
        empty="The artefacts name no input file.",
        flags=flags_of(run),
    )


def origin(ident: str, label: str, origin: Provenance) -> Table:
    """Return the hashes that another artefact of the page was made from, its own first."""
    own = {
        f"protocol {origin.protocol_id}": origin.protocol_sha256,
        f"mapping {origin.mapping_version}": origin.mapping_sha256,
        f"code {origin.code_version}": origin.code_sha256,
    }
    hashes = {**own, **dict(sorted(origin.inputs.items()))}
    rows = tuple(
        (Cell(name, mono=True), Cell(digest or "none", mono=True))
        for name, digest in hashes.items()
    )
    caption = f"What the {label} was made from"
    return Table(ident=ident, caption=caption, columns=names("artefact", "SHA-256"), rows=rows)


def sanity(
    ident: str,
    caption: str,
    blocks: list[tuple[str, SanityBlock]],
    flags: tuple[Flag, ...] = (),
) -> Table:
    """Return the numeric families of sanity blocks: n, finite, missing, range, distinct."""
    rows = []
    for artefact, block in blocks:
        for family in block.families:
            kind = "constant" if family.expected_constant else "signed" if family.signed else ""
            rows.append(
                (
                    text(artefact),
                    Cell(family.name, mono=True),
                    text(family.unit),
                    value_cell(family.n),
                    value_cell(family.finite),
                    Cell(
                        number(family.missing),
                        tone="warn" if family.missing else "",
                        sort=float(family.missing),
                    ),
                    value_cell(family.min, "no finite value"),
                    value_cell(family.max, "no finite value"),
                    value_cell(family.distinct),
                    text(kind),
                )
            )
    return Table(
        ident=ident,
        caption=caption,
        columns=(
            *names("artefact", "family", "unit"),
            *numbers("n", "finite", "missing", "min", "max", "distinct"),
            *names("expected"),
        ),
        rows=tuple(rows),
        empty="No sanity family.",
        flags=flags,
    )
