"""Properties of the scanner: any strings, any layout, any pieces, any damage."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_builder import Trace, kernel, python_function, span, us, write_text

from opprof.errors import InputError
from opprof.trace import inflate
from opprof.trace.columns import read_columns
from opprof.trace.nanoseconds import all_ns

LAYOUTS = ["kineto", "compact", "reordered", "indented"]

nasty = st.text(st.sampled_from('"\\{}[],: \n\t\x00\x7fabé漢😀'), max_size=12) | st.sampled_from(
    ['"cat": "kernel"', '\n  },\n  {\n    "ph": "X", "cat": "kernel"', "},{", "]}"]
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    events = []
    for index in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["kernel", "op", "python", "meta", "unknown", "run"]))
        name = draw(nasty)
        if kind == "kernel":
            events.append(
                kernel(name, us(index), f"{draw(st.integers(0, 10**6)) / 1000:.3f}", index)
            )
        elif kind == "op":
            events.append(span("cpu_op", name, us(index), "1.000", args={"Input Dims": [[1], []]}))
        elif kind == "python":
            events.append(python_function(name))
        elif kind == "run":
            events += [python_function(f"{i}{name}") for i in range(draw(st.integers(1, 6)))]
        elif kind == "meta":
            events.append({"name": name, "ph": "M", "args": {"name": name, "list": [{}, {}]}})
        else:
            events.append(span(name, name, us(index), "1.000"))
    return Trace(events)


def kernels_of(path: Path, budget: int | None) -> Counter[tuple[str, int, int]]:
    columns = read_columns(path, is_step_annotation=lambda name: False, json_budget_bytes=budget)
    names = [name for name, _ in columns.kernels.keys]
    rows = zip(
        columns.kernels.key,
        columns.kernels.start_ns,
        columns.kernels.duration_ns.values,
        strict=True,
    )
    return Counter((names[key], start, duration) for key, start, duration in rows)


def plain_kernels(text: str) -> Counter[tuple[str, int, int]]:
    def exact(value: str) -> Fraction:
        return Fraction(value) * 1000

    events = json.loads(text, parse_float=exact, parse_int=exact)["traceEvents"]
    return Counter(
        (event["name"], int(event["ts"]), int(event["dur"]))
        for event in events
        if event.get("cat") == "kernel"
    )


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trace=traces(),
    layout=st.sampled_from(LAYOUTS),
    piece=st.integers(2, 200),
    budget=st.sampled_from([None, 0, 300]),
)
def test_the_scanner_finds_what_json_finds(
    trace: Trace, layout: str, piece: int, budget: int | None, folder: Path
) -> None:
    text = getattr(trace, layout)()
    path = write_text(folder / "t.gz", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "COMPRESSED_PIECE_BYTES", piece)
        assert kernels_of(path, budget) == plain_kernels(text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(trace=traces(), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_damaged_text_is_read_right_or_refused(
    trace: Trace, layout: str, data: st.DataObject, folder: Path
) -> None:
    """Replace, insert or delete anywhere; with every byte parsed the verdict is json's."""
    text = getattr(trace, layout)()
    at = data.draw(st.integers(0, len(text)))
    width = data.draw(st.integers(0, 3))
    insert = data.draw(st.sampled_from(["", '"', "\\", "{", "}", "]", ",", "\n", "x", "1", "\x01"]))
    damaged = text[:at] + insert + text[at + width :]
    path = write_text(folder / "t.gz", damaged)
    try:
        found = kernels_of(path, None)
    except InputError as error:
        assert error.path == str(path)
        assert error.offset is not None
        assert 0 <= error.offset <= len(damaged.encode())
    else:
        assert found == plain_kernels(damaged)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**13), st.integers(0, 999)).map(lambda p: f"{p[0]}.{p[1]:03d}"),
        max_size=5,
    ),
    st.sampled_from(["", "7", "1.5", "2e2", "0.1234567", "-3.25", "5140006195705.411"]),
)
def test_nanoseconds_are_exact(fixed: list[str], other: str) -> None:
    texts = [*fixed, other] if other else fixed
    want = [round(Fraction(text) * 1000) for text in texts]
    raws: list[Any] = [text.encode() for text in texts]
    assert all_ns(raws) == want


def test_pieces_of_a_highly_compressed_text_stay_small(tmp_path: Path) -> None:
    """A bomb (1000 to 1) is inflated piece by piece."""
    path = write_text(tmp_path / "t.gz", b" " * (64 << 20))
    sizes = [len(piece) for piece in inflate.GzipText(path)]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 9 << 20
