"""The join of a window to Layer-1 steps: exact, by order and time, ambiguous, disagreeing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from kineto_builder import STEP_US, Trace, annotation, us

from opprof.artifacts.layer1 import Step
from opprof.trace.join import Join, join_window, ranks_agree
from opprof.trace.model import WindowTrace

Read = Callable[..., WindowTrace]

MONO_NS = 300 * 10**9
START, END = MONO_NS - 10**9, MONO_NS + 10**9


def step(index: int, submit_ns: int, decode: int = 4, prefill: tuple[int, int] = (0, 0)) -> Step:
    return Step(
        step=index,
        submit_mono_ns=submit_ns,
        complete_mono_ns=submit_ns + 12_000_000,
        model_executed=True,
        scheduled_requests=decode + prefill[0],
        prefill_requests=prefill[0],
        prefill_tokens=prefill[1],
        decode_requests=decode,
        decode_tokens=decode,
        prefill_chunks=[prefill[1]] if prefill[0] else [],
        context_len_hist=None,
        context_len_sum=0,
        context_len_max=0,
        waiting=0,
        running=decode,
        deferred=0,
        preemptions=0,
        kv_usage=0.5,
        prefix_queries=0,
        prefix_hits=0,
        graph=None,
    )


def irregular_window(seed: int = 1, counts: str = "0(0)|4(4)") -> tuple[Trace, list[int]]:
    """Return a window with uneven step lengths and its annotation starts in ns from the base."""
    rng = random.Random(seed)
    base = Trace.window(counts=counts)
    starts, at = [], 0
    for index in range(8):
        shift = at - index * STEP_US
        for event in base.events[4 * index : 4 * index + 4]:
            offset = float(event["ts"]) - float(us(0)) + shift
            event["ts"] = type(event["ts"])(us(offset))
        base.events[4 * index]["dur"] = type(base.events[0]["dur"])("9000.000")
        base.events[4 * index + 1]["dur"] = type(base.events[0]["dur"])("8000.000")
        starts.append(round((at + 10) * 1000))
        at += rng.randrange(10_000, 15_000)
    return base, starts


def stream(starts: list[int], before: int = 20, after: int = 20, first: int = 100) -> list[Step]:
    """Layer-1 steps of which 8 match ``starts``; others are evenly spaced around them."""
    times = [starts[0] - 12_000_000 * (before - i) for i in range(before)]
    times += [*starts, *(starts[-1] + 12_000_000 * (i + 1) for i in range(after))]
    return [step(first + i, MONO_NS + time - 300_000) for i, time in enumerate(times)]


def join(window: WindowTrace, steps: list[Step], margin_min: float = 2.0) -> Join:
    return join_window(window, steps, start_mono_ns=START, end_mono_ns=END, margin_min=margin_min)


def codes(result: Join) -> list[str]:
    return [reason.code for reason in result.reasons]


def test_time_decides_among_equal_counts(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window()
    result = join(read(trace.write(tmp_path / "t.gz")), stream(starts))
    assert result.steps == list(range(120, 128))
    assert result.method == "order"
    assert result.candidates == 41
    assert result.residual_ns == 0
    assert result.margin is not None
    assert result.margin > 1000


def test_even_steps_are_ambiguous(tmp_path: Path, read: Read) -> None:
    """Eight equal steps at equal distances fit everywhere: no join may be claimed."""
    window = read(Trace.window().write(tmp_path / "t.gz"))
    steps = [step(i, MONO_NS + i * STEP_US * 1000) for i in range(-30, 30)]
    steps = [msgspec.structs.replace(s, step=i) for i, s in enumerate(steps)]
    result = join(window, steps)
    assert codes(result) == ["join_ambiguous"]
    assert result.steps is None
    assert not result.valid


def test_the_margin_is_the_callers(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window()
    rng = random.Random(3)
    noisy = [at + rng.randrange(-400_000, 400_000) for at in starts]
    window = read(trace.write(tmp_path / "t.gz"))
    result = join(window, stream(noisy))
    assert result.valid
    assert result.margin is not None
    strict = join(window, stream(noisy), margin_min=result.margin * 1.01)
    assert codes(strict) == ["join_ambiguous"]


def test_unique_counts_need_no_margin(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window(counts="1(77)|4(4)")
    steps = stream(starts)
    steps[20:28] = [step(s.step, s.submit_mono_ns, prefill=(1, 77)) for s in steps[20:28]]
    result = join(read(trace.write(tmp_path / "t.gz")), steps)
    assert result.steps == list(range(120, 128))
    assert (result.candidates, result.margin) == (1, None)


def test_totals_that_disagree_are_invalid(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window()
    steps = stream(starts, before=3, after=0)
    steps[5] = step(steps[5].step, steps[5].submit_mono_ns, decode=5)
    result = join(read(trace.write(tmp_path / "t.gz")), steps)
    assert codes(result) == ["join_totals_disagree"]
    text = result.reasons[0].text
    assert "ProfilerStep#4" in text
    assert "Layer-1 step 105 has 0(0) prefill and 5(5) decode" in text


def test_counts_that_fit_only_where_the_times_do_not(tmp_path: Path, read: Read) -> None:
    """The true run's record is wrong, and another run fits the counts by chance."""
    trace, starts = irregular_window()
    steps = stream(starts)
    steps[23] = step(steps[23].step, steps[23].submit_mono_ns, decode=5)
    result = join(read(trace.write(tmp_path / "t.gz")), steps)
    assert not result.valid
    assert codes(result)[0] in {"join_totals_disagree", "join_ambiguous"}


def test_only_steps_of_the_profile_interval_count(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window()
    window = read(trace.write(tmp_path / "t.gz"))
    result = join_window(
        window,
        stream(starts),
        start_mono_ns=MONO_NS + 10**12,
        end_mono_ns=MONO_NS + 2 * 10**12,
        margin_min=2.0,
    )
    assert codes(result) == ["join_no_candidate"]


def test_a_step_without_annotation_cannot_join(tmp_path: Path, read: Read) -> None:
    trace, starts = irregular_window()
    del trace.events[1]
    assert codes(join(read(trace.write(tmp_path / "t.gz")), stream(starts))) == [
        "join_no_annotation"
    ]


# ------------------------------------------------------------------------- exact


def marked(tmp_path: Path, read: Read, indices: list[int]) -> WindowTrace:
    trace = Trace.window()
    for place, index in enumerate(indices):
        at = place * STEP_US
        trace.add(annotation(f"opprof_step_{index}", us(at + 20), "8000.000"))
    return read(trace.write(tmp_path / "t.gz"))


def even(count: int = 40) -> list[Step]:
    return [step(i, MONO_NS + i * STEP_US * 1000) for i in range(count)]


def test_annotations_join_exactly(tmp_path: Path, read: Read) -> None:
    result = join(marked(tmp_path, read, list(range(7, 15))), even())
    assert result.steps == list(range(7, 15))
    assert (result.method, result.margin, result.residual_ns) == ("annotation", None, None)


@pytest.mark.parametrize(
    ("indices", "code"),
    [
        (list(range(7, 14)), "join_annotation_missing"),
        ([7, 8, 9, 10, 12, 13, 14, 15], "join_not_consecutive"),
        ([7, 8, 9, 10, 10, 11, 12, 13], "join_not_consecutive"),
        (list(range(35, 43)), "join_step_absent"),
    ],
)
def test_annotations_that_cannot_be_right(
    indices: list[int], code: str, tmp_path: Path, read: Read
) -> None:
    assert codes(join(marked(tmp_path, read, indices), even())) == [code]


def test_an_exact_join_still_checks_the_totals(tmp_path: Path, read: Read) -> None:
    steps = even()
    steps[9] = step(9, steps[9].submit_mono_ns, decode=5)
    result = join(marked(tmp_path, read, list(range(7, 15))), steps)
    assert codes(result) == ["join_totals_disagree"]
    assert "ProfilerStep#4" in result.reasons[0].text


def test_ranks_of_one_window_must_agree(tmp_path: Path, read: Read) -> None:
    one = join(marked(tmp_path, read, list(range(7, 15))), even())
    other = join(marked(tmp_path, read, list(range(8, 16))), even())
    assert ranks_agree([one, one]) is None
    reason = ranks_agree([one, other])
    assert reason is not None
    assert "7..14, 8..15" in reason.text


def test_tied_clocks_decide_even_steps(tmp_path: Path, read: Read) -> None:
    """Cause and effect: not executed before submitted, not complete before its last kernel."""
    trace = Trace.window()
    window = read(trace.write(tmp_path / "t.json.gz"))
    assert window.base_wall_ns is not None
    starts = [seen.start_ns for seen in (step.execute for step in window.steps) if seen]
    period = starts[1] - starts[0]
    ends = [end for end in (step.last_kernel_end_ns for step in window.steps) if end]
    assert max(end - start for start, end in zip(starts, ends, strict=True)) < period
    shift = MONO_NS - starts[0]
    steps = []
    for index in range(-10, 18):
        submit = starts[0] + index * period + shift - 300_000
        complete = ends[0] + index * period + shift + 200_000
        changed = msgspec.structs.replace(step(100 + index, submit), complete_mono_ns=complete)
        steps.append(changed)

    def tied(error_ns: int) -> Join:
        return join_window(
            window,
            steps,
            start_mono_ns=START,
            end_mono_ns=END,
            margin_min=2.0,
            clock_offset_ns=window.base_wall_ns - shift + error_ns,  # type: ignore[operator]
        )

    assert codes(join(window, steps)) == ["join_ambiguous"]
    assert tied(0).steps == list(range(100, 108))
    assert tied(0).method == "order"
    # A tie that is half a step off, or hours off, decides nothing.
    assert codes(tied(period // 2)) == ["join_ambiguous"]
    assert codes(tied(3600 * 10**9)) == ["join_ambiguous"]


def test_submissions_decide_where_completions_are_more_even(tmp_path: Path, read: Read) -> None:
    """Seen on an H200: a neighbour's completions were evener than the true run's submissions."""
    trace, starts = irregular_window()
    rng = random.Random(5)
    window = read(trace.write(tmp_path / "t.json.gz"))
    ends = [end for end in (found.last_kernel_end_ns for found in window.steps) if end]
    shift = MONO_NS - starts[0]
    steps = stream([at + rng.randrange(-90_000, 90_000) for at in starts])
    # Each completion comes a step late: exactly even for the run that begins one step early.
    for index, end in enumerate(ends):
        late = 19 + index
        steps[late] = msgspec.structs.replace(steps[late], complete_mono_ns=end + shift + 200_000)
    result = join(window, steps)
    assert result.steps == list(range(120, 128))
    assert result.clock == "submit"
