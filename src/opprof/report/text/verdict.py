"""What limited the GPU under each pattern, and which runs must not be believed."""

from __future__ import annotations

from collections.abc import Sequence

from opprof.artifacts.common import Gate
from opprof.artifacts.kernels import WindowFamilies
from opprof.report.cells import red_flags as cell_red_flags
from opprof.report.fill import Fill, fills
from opprof.report.formats import listing, percent, points, span
from opprof.report.inputs import ReportInput, RunView
from opprof.report.palette import family
from opprof.words import plural


def headline(report: ReportInput) -> str:
    """Return the report in two sentences: how many runs stand, and what leads where."""
    runs = report.runs
    invalid = sum(run.invalid for run in runs)
    patterns = len({run.identity.pattern for run in runs})
    text = f"{plural(len(runs), 'run')} of {plural(patterns, 'pattern')}, "
    if invalid == len(runs) > 1:
        text += "all of them invalid"
    else:
        text += "none of them invalid" if not invalid else f"{invalid} of them invalid"
    leads: dict[str, list[str]] = {}
    open_ = []
    for run in runs:
        names = {leader(w) for w in run.windows if w.accepted and w.kernel_ns}
        if len(names) == 1:
            leads.setdefault(family(names.pop()).label, []).append(run.label)
        elif names:
            open_.append(run.label)
    parts = [f"{name} leads in {_labels_or_all(who, runs)}" for name, who in leads.items()]
    if open_:
        parts.append(f"the windows disagree in {listing(open_)}")
    return f"{text}. {_capital('; '.join(parts))}." if parts else f"{text}."


def _labels_or_all(labels: list[str], runs: Sequence[RunView]) -> str:
    return "every run" if len(labels) == len(runs) > 1 else listing(labels)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def red_flag_sentences(report: ReportInput, own: list[str]) -> tuple[str, ...]:
    """Return every red flag with its run, the report's own first."""
    flags = [f"This report: {flag}." for flag in own]
    for run in report.runs:
        flags += [f"{run.label}: {_stop(flag)}" for flag in run.red_flags]
    flags += [_stop(flag) for part in report.compared for flag in cell_red_flags(part.comparison)]
    return tuple(flags)


def invalid_sentences(report: ReportInput) -> tuple[str, ...]:
    """Return one sentence for every gate that makes runs invalid: which runs, why, what it means.

    Gates that fail in few runs come first: they say most about those.
    """
    failed: dict[str, list[tuple[RunView, Gate]]] = {}
    for run in report.runs:
        for gate in run.invalidating:
            failed.setdefault(gate.name, []).append((run, gate))
    order = sorted(failed, key=lambda name: (len(runs_of(failed[name])), name))
    return tuple(_gate_sentence(name, failed[name], report) for name in order)


def runs_of(found: Sequence[tuple[RunView, Gate]]) -> list[RunView]:
    """Return the distinct runs of (run, gate) pairs in their order."""
    return list({id(run): run for run, _ in found}.values())


def _gate_sentence(name: str, found: Sequence[tuple[RunView, Gate]], report: ReportInput) -> str:
    runs = runs_of(found)
    reasons = list(dict.fromkeys(gate.reason.rstrip(".") for _, gate in found))
    text = f"{name} fails in {_everyone(runs, report)}: {reasons[0]}"
    if len(reasons) > 1:
        text += f" ({runs[0].label}; the others alike)" if len(runs) > 1 else "; and more"
    meaning = found[0][1].meaning
    return f"{text}. {_stop(meaning)}" if meaning else f"{text}."


def _everyone(runs: Sequence[RunView], report: ReportInput) -> str:
    return "every run" if len(runs) == len(report.runs) > 1 else _labels(runs)


def standing_sentences(report: ReportInput) -> tuple[str, ...]:
    """Return what holds for the report as a whole: simulated, scaled, quarantined, unbound."""
    runs = report.runs
    sentences = []
    simulated = [run for run in runs if run.identity.simulated]
    if simulated:
        who = "Every run" if len(simulated) == len(runs) else _labels(simulated)
        verb = "was" if len(simulated) in (1, len(runs)) else "were"
        sentences.append(f"{who} {verb} SIMULATED by the embedded engine: not a measurement.")
    scaled = [run for run in runs if run.identity.time_scale != 1.0]
    if scaled:
        factors = listing(sorted({f"{run.identity.time_scale:g}" for run in scaled}))
        sentences.append(
            f"{_labels(scaled)} ran with durations scaled by {factors}, unlike the protocol's."
        )
    quarantined = [run for run in runs if run.identity.drain_quarantined]
    if quarantined:
        sentences.append(
            f"Drain-quarantined (A-P3-5): {_labels(quarantined)}. The drain exceeded its "
            "allowance; the clean data stay usable and are flagged in every table."
        )
    unbound = [run for run in runs if any(p.protocol_sha256 is None for _, p in run.provenances())]
    if unbound:
        sentences.append(
            f"{_labels(unbound)} {'was' if len(unbound) == 1 else 'were'} analysed without a "
            "protocol: gates that need one are not evaluable, which is neither pass nor fail."
        )
    sentences += [
        f"{run.label} was judged again: {_stop(run.verdicts)}" for run in runs if run.verdicts
    ]
    mixed = [sentence for part in report.compared for sentence in _mixed_sentences(part)]
    return (*sentences, *report.protocol_trouble, *dict.fromkeys(mixed))


def _mixed_sentences(report: ReportInput) -> list[str]:
    origins = [origin for run in report.runs for _, origin in run.provenances()]
    sentences = []
    for word, digests in (
        ("protocols", {origin.protocol_sha256 for origin in origins}),
        ("mapping tables", {o.mapping_sha256 for o in origins if o.mapping_sha256 is not None}),
        ("versions of the code", {origin.code_sha256 for origin in origins}),
    ):
        if len(digests) > 1:
            sentences.append(
                f"The artefacts were made with {len(digests)} different {word}: analyse the runs "
                "again with one of them before comparing."
            )
    comparison = report.comparison
    other = [
        run
        for run in report.runs
        if comparison is not None
        and run.kernels is not None
        and run.kernels.mapping_version != comparison.mapping_version
    ]
    if comparison is not None and other:
        sentences.append(
            f"The protocol pins mapping {comparison.mapping_version}, which decides the ranking; "
            f"{_labels(other)} {'was' if len(other) == 1 else 'were'} analysed with another table "
            "deciding, and the shares are shown under that one first."
        )
    return sentences


def _labels(runs: Sequence[RunView]) -> str:
    return listing([run.label for run in runs])


def limit_sentences(report: ReportInput) -> tuple[str, ...]:
    """Return one sentence a run: the family that leads the GPU's kernel time, and how surely."""
    sentences = [f"{run.label}: {limit_sentence(run)}" for run in report.runs]
    return (*sentences, *_representative_caveats(report))


def limit_sentence(run: RunView) -> str:
    """Say which family leads over all accepted windows and ranks, by how much, with caveats."""
    accepted = [window for window in run.windows if window.accepted and window.kernel_ns]
    if not accepted:
        return _no_breakdown(run)
    leaders = {leader(window) for window in accepted}
    sentence = _one_leader(accepted) if len(leaders) == 1 else _several_leaders(accepted)
    return " ".join([sentence, *_fill_sentences(run), *_caveats(run, accepted)])


def _no_breakdown(run: RunView) -> str:
    if not run.windows:
        return "no profile window, so nothing is known of the GPU's time."
    reasons = list(dict.fromkeys(reason for window in run.windows for reason in window.reasons))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"no window was accepted{why}, so nothing is known of the GPU's time."


def ranked(window: WindowFamilies) -> list[tuple[str, float]]:
    """Return families by falling share; equal shares keep the order of their names."""
    shares = [(name, time.share) for name, time in window.families.items()]
    return sorted(shares, key=lambda pair: (-pair[1], pair[0]))


def leader(window: WindowFamilies) -> str:
    """Return the family with the largest share."""
    return ranked(window)[0][0]


def _one_leader(windows: Sequence[WindowFamilies]) -> str:
    first = leader(windows[0])
    mine = [window.families[first].share for window in windows]
    rest: dict[str, list[float]] = {}
    for window in windows:
        for name, share in ranked(window)[1:]:
            rest.setdefault(name, []).append(share)
    text = f"{family(first).label} takes the largest share of kernel time, "
    text += f"{span(min(mine), max(mine))} {_where(windows)}"
    if rest:
        second = max(rest, key=lambda name: (sum(rest[name]), name))
        text += (
            f"; next is {family(second).label} with {span(min(rest[second]), max(rest[second]))}"
        )
    return f"{text}."


def _fill_sentences(run: RunView) -> list[str]:
    """Say how much of a clean step the kernels take, for modes with enough active steps."""
    modes: dict[str, list[Fill]] = {}
    for row in fills(run):
        if row.reported:
            modes.setdefault(row.mode, []).append(row)
    sentences = []
    for mode, rows in modes.items():
        found = [row.fraction for row in rows if row.fraction is not None]
        if found:
            sentences.append(_fill_sentence(mode, found))
        else:
            why = rows[0].why_not
            sentences.append(f"How much of a clean {mode} step kernels take is not known: {why}.")
    return sentences


def _fill_sentence(mode: str, found: list[float]) -> str:
    shares = span(min(found), max(found))
    if max(found) <= 1:
        return f"Kernels take {shares} of a median clean {mode} step."
    # More than all of a step: it cannot be the same work.
    return (
        f"Kernels of a median active {mode} step take {shares} of a whole median clean one: "
        "the windows held larger steps, or the profiler slowed them."
    )


def _where(windows: Sequence[WindowFamilies]) -> str:
    ranks = len({window.rank for window in windows})
    count = len({window.window for window in windows})
    text = {1: "in its one window", 2: "in both windows"}.get(count, f"in all {count} windows")
    return text if ranks == 1 else f"{text} on all {ranks} ranks"


def _several_leaders(windows: Sequence[WindowFamilies]) -> str:
    ranks = len({window.rank for window in windows})
    parts = []
    for window in windows:
        name, share = ranked(window)[0]
        place = f"window {window.window}" + (f" rank {window.rank}" if ranks > 1 else "")
        parts.append(f"{family(name).label} with {percent(share)} in {place}")
    return f"the windows do not agree on what leads: {listing(parts)}."


def _caveats(run: RunView, accepted: Sequence[WindowFamilies]) -> list[str]:
    caveats = []
    missing = len(run.windows) - len(accepted)
    if missing:
        caveats.append(
            f"{plural(missing, 'trace')} of {len(run.windows)} not accepted and left out."
        )
    vague = [window for window in accepted if window.classifiable is False]
    if vague:
        fraction = min(window.classified_fraction for window in vague)
        caveats.append(
            f"Not classifiable: {plural(len(vague), 'trace')} with too little kernel time in a "
            f"known family (at worst {percent(fraction)})."
        )
    return caveats


def _representative_caveats(report: ReportInput) -> list[str]:
    """Say of all runs at once that their windows failed the gate, and what that is worth."""
    failed = [
        run
        for run in report.runs
        if run.windows and run.kernels is not None and run.kernels.breakdown_valid is False
    ]
    if not failed:
        return []
    rates = [
        run.kernels.representativeness.null_rate.load_point_failure_rate
        for run in failed
        if run.kernels is not None
        and run.kernels.representativeness is not None
        and run.kernels.representativeness.null_rate is not None
    ]
    text = f"The windows of {_everyone(failed, report)} failed the representativeness gate: "
    text += "these shares describe the windows, not the load point."
    if rates:
        text += (
            f" By itself the gate rejects {span(min(rates), max(rates))} of window pairs drawn "
            "from unprofiled steps of the same runs, so its failure says little about the profiler."
        )
    return [text]


def mapping_sentences(report: ReportInput) -> tuple[str, ...]:
    """Return what another mapping table changes: the largest shift, and every changed leader."""
    sentences = []
    versions = sorted({version for run in report.runs for version in run.other_mappings})
    for version in versions:
        sentences += _largest_shift(report, version)
        runs: dict[str, list[RunView]] = {}
        for run in report.runs:
            for note in _other_leader(run, version):
                runs.setdefault(note, []).append(run)
        sentences += [f"{_group(found, report)}: {note}" for note, found in runs.items()]
        if not runs:
            sentences.append(f"What leads is the same under {version} in every accepted trace.")
    return tuple(sentences)


def mapping_notes(report: ReportInput) -> tuple[str, ...]:
    """Return the analysis's own notes on the tables, each once with its runs."""
    runs: dict[str, list[RunView]] = {}
    for run in report.runs:
        for note in [] if run.kernels is None else run.kernels.mapping_notes:
            runs.setdefault(_stop(note), []).append(run)
    return tuple(f"{_group(found, report)}: {note}" for note, found in runs.items())


def _largest_shift(report: ReportInput, version: str) -> list[str]:
    shifts = []
    for run in report.runs:
        mine = {(w.window, w.rank): w for w in run.windows if w.accepted and w.kernel_ns}
        for other in run.windows_under(version):
            pinned = mine.get((other.window, other.rank))
            if pinned is None:
                continue
            for name, time in pinned.families.items():
                there = other.families.get(name)
                moved = (there.share if there is not None else 0.0) - time.share
                shifts.append((abs(moved), moved, name, run.label, pinned))
    if not shifts:
        return []
    size, moved, name, label, window = max(shifts, key=lambda shift: shift[0])
    if size == 0:
        return [f"{version} gives every family the same share as {window.mapping_version}."]
    return [
        f"Under {version} in place of {window.mapping_version} (deciding), shares move by up to "
        f"{points(size).lstrip('+')} pp: {family(name).label} "
        f"{'gains' if moved > 0 else 'loses'} that much in {label}, window {window.window}"
        f"{f' rank {window.rank}' if window.rank else ''}."
    ]


def _group(runs: list[RunView], report: ReportInput) -> str:
    whole = len(runs) == len(report.runs) > 1
    return "Every run" if whole else listing([run.label for run in runs])


def _other_leader(run: RunView, version: str) -> list[str]:
    mine = {(w.window, w.rank): w for w in run.windows if w.accepted and w.kernel_ns}
    changed = []
    for other in run.windows_under(version):
        pinned = mine.get((other.window, other.rank))
        if pinned is not None and other.kernel_ns and leader(pinned) != leader(other):
            changed.append((pinned, other))
    if not changed:
        return []
    pinned, other = changed[0]
    where = f"window {pinned.window} rank {pinned.rank}"
    return [
        "what leads depends on the mapping table in "
        f"{len(changed)} of {plural(len(mine), 'trace')}; in {where} it is "
        f"{_named(pinned)} under {pinned.mapping_version} (deciding) and {_named(other)} under "
        f"{version}."
    ]


def _named(window: WindowFamilies) -> str:
    name, share = ranked(window)[0]
    return f"{family(name).label} ({percent(share)})"


def _stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
