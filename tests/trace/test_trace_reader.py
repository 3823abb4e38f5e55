"""Every layout is read alike; every damaged trace gives one message with file and byte."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from kineto_builder import Text, Trace, call, encode, kernel, python_function, span, us, write_text

from opprof.errors import InputError, SchemaError
from opprof.trace.model import Tally, WindowTrace

Read = Callable[..., WindowTrace]


@pytest.mark.parametrize("layout", ["kineto", "compact", "reordered", "indented"])
def test_every_layout_gives_the_same_window(layout: str, tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.events.insert(3, python_function('quoted \\" {"cat": "kernel"}, {"ph": "X"'))
    trace.add({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": 'a "cat": "kernel"'}})
    trace.add({"ph": "s", "id": 5, "cat": "ac2g", "ts": 1.5, "name": "ac2g"})
    trace.add(span("fwdbwd", "unknown category", "1.0", "2.0"))
    window = read(trace.write(tmp_path / "t.gz", layout))
    assert window.kernel == Tally(8, 800_000)
    assert window.accepted, window.reasons
    assert window.rank == 0
    assert window.base_wall_ns == 1_790_857_026_000_000_000


def test_keys_and_categories_inside_strings_are_no_events(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    name = 'x", "cat": "kernel", "name": "y\\"},\\n  {\\n    "ph": "X", "cat": "kernel"'
    trace.add(span("cpu_op", name, us(1), "1.000"))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.kernel.events == 8


@pytest.mark.parametrize("budget", [None, 0, 1, 10_000])
def test_the_python_budget_changes_no_figure(
    budget: int | None, tmp_path: Path, read: Read
) -> None:
    trace = Trace.window()
    filler = [python_function(f"frame {i} }}, {{ {i}") for i in range(2000)]
    plain = [python_function(f"frame {i}") for i in range(2000)]
    middle = len(trace.events) // 2
    trace.events[middle:middle] = plain + filler[:1] + plain + filler
    window = read(trace.write(tmp_path / "t.gz"), json_budget_bytes=budget)
    assert window.kernel == Tally(8, 800_000)
    assert window.accepted
    assert (window.searched_bytes > 0) == (budget is not None)


def test_an_event_inside_a_searched_run_is_found(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    for index in range(0, 900, 30):
        trace.events[1:1] = [python_function(f"f{index + i}") for i in range(30)]
        trace.events.insert(1, call("cudaLaunchKernel", us(200), 5000 + index))
        trace.events.insert(1, kernel("hidden", us(6000 + index), "1.000", 5000 + index))
    window = read(trace.write(tmp_path / "t.gz"), json_budget_bytes=0)
    assert window.kernel == Tally(8 + 30, 800_000 + 30_000)


def test_a_compact_event_after_a_python_run_is_found(tmp_path: Path, read: Read) -> None:
    """The layout changes inside a run: what is searched must notice it."""
    trace = Trace.window()
    trace.events[1:1] = [python_function(f"f{i}") for i in range(300)]
    text = trace.kineto()
    hidden = encode(kernel("hidden", us(5500), "1.000", 1002))
    mark = '"name": "f200"'
    border = text.rindex("  {\n", 0, text.index(mark))
    text = text[:border] + hidden + ",\n" + text[border:]
    window = read(write_text(tmp_path / "t.gz", text), json_budget_bytes=0)
    assert window.kernel == Tally(9, 801_000)


def test_units_are_microseconds_and_sums_are_exact(tmp_path: Path, read: Read) -> None:
    """FIELD-CASES 4 and 6."""
    trace = Trace.window()
    trace.head["displayTimeUnit"] = "ns"
    trace.add(call("cudaLaunchKernel", us(50), 1), kernel("k", us(100.7), "0.2", 1))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.kernel == Tally(9, 800_200)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1", 1000), ("1e3", 1_000_000), ("12.5E-1", 1250), ("0", 0), ("0.0005", 0), ("0.0015", 2)],
)
def test_any_json_number_is_a_time(text: str, ns: int, tmp_path: Path, read: Read) -> None:
    trace = Trace.window().add(kernel("k", us(5500), text, 1002))
    assert read(trace.write(tmp_path / "t.gz")).kernel.ns == 800_000 + ns


@pytest.mark.parametrize(
    ("dur", "said", "error"),
    [
        ("NaN", "invalid", InputError),
        ("Infinity", "invalid", InputError),
        ("-5000.0", "negative", SchemaError),
        ("-0.001", "negative", SchemaError),
        ('"12.0"', "dur is a string", SchemaError),
        ("null", "dur is null", SchemaError),
        ("[1]", "dur is a list", SchemaError),
        ("1e300", "beyond 62 bits", SchemaError),
        ("1e9999999", "not a number", SchemaError),
    ],
)
def test_an_impossible_duration_is_refused(
    dur: str, said: str, error: type[InputError], tmp_path: Path, read: Read
) -> None:
    trace = Trace.window()
    trace.events[3]["dur"] = Text(dur)
    text = trace.kineto()
    with pytest.raises(InputError, match=said) as caught:
        read(write_text(tmp_path / "t.gz", text))
    assert type(caught.value) is error
    assert caught.value.path == str(tmp_path / "t.gz")
    assert caught.value.offset is not None
    event = text.rindex("  {\n", 0, text.index('"name": "some_kernel"'))
    assert event <= caught.value.offset <= text.index("}", event)


@pytest.mark.parametrize("field", ["ts", "dur", "name"])
def test_a_missing_field_is_named(field: str, tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    del trace.events[7][field]
    with pytest.raises(SchemaError, match=f"`{field}`"):
        read(trace.write(tmp_path / "t.gz"))


@pytest.mark.parametrize("element", ["5", '"text"', "null", "[1, 2]", "[]"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_an_element_that_is_no_object_is_refused(
    element: str, place: int, tmp_path: Path, read: Read
) -> None:
    pieces = [encode(event) for event in Trace.window().events]
    pieces.insert(place if place >= 0 else len(pieces), element)
    text = '{"traceEvents": [' + ", ".join(pieces) + "]}"
    with pytest.raises(InputError, match="object") as caught:
        read(write_text(tmp_path / "t.gz", text))
    assert text[caught.value.offset :].startswith(element)


def test_an_unescaped_quote_is_located(tmp_path: Path, read: Read) -> None:
    """FIELD-CASES 5."""
    text = Trace.window().kineto()
    at = text.index("some_kernel") + 4
    with pytest.raises(InputError, match="no valid JSON") as caught:
        read(write_text(tmp_path / "t.gz", text[:at] + '"' + text[at:]))
    assert at <= caught.value.offset <= at + 3


@pytest.mark.parametrize("byte", [b"\n", b"\t", b"\x00", b"\x1f"])
@pytest.mark.parametrize("where", ["some_kernel", "a python frame"])
def test_a_control_character_is_located(
    byte: bytes, where: str, tmp_path: Path, read: Read
) -> None:
    trace = Trace.window()
    trace.events.insert(3, python_function("a python frame"))
    text = trace.kineto().encode()
    at = text.index(where.encode()) + 4
    with pytest.raises(InputError, match="no valid JSON") as caught:
        read(write_text(tmp_path / "t.gz", text[:at] + byte + text[at:]))
    assert at <= caught.value.offset <= at + 3


def test_bytes_that_are_no_utf8_are_refused(tmp_path: Path, read: Read) -> None:
    text = Trace.window().kineto().encode().replace(b"some_kernel", b"some\xff\xfekernel", 1)
    with pytest.raises(InputError):
        read(write_text(tmp_path / "t.gz", text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("\n  ],", "\n  ,],", "doubled comma"),
        ("\n  ],", ",\n  ],", "trailing or"),
        ('"trace.json"\n}', '"trace.json"\n', "around traceEvents"),
        ('"trace.json"\n}', '"trace.json"\n} x', "around traceEvents"),
        ('"trace.json"\n}', '"trace.json", "traceEvents": [{}]\n}', "twice"),
        ('"traceEvents"', '"events"', "no traceEvents"),
        ('"schemaVersion": 1,', '"schemaVersion": 1', "around traceEvents"),
        ("\n  },\n", "\n  }\n", "no valid JSON"),
        ("\n  },\n", "\n  },,\n", "doubled comma"),
    ],
)
def test_broken_json_is_refused(old: str, new: str, said: str, tmp_path: Path, read: Read) -> None:
    text = Trace.window().kineto()
    assert old in text
    with pytest.raises(InputError, match=said) as caught:
        read(write_text(tmp_path / "t.gz", text.replace(old, new, 1)))
    assert caught.value.path is not None
    assert caught.value.offset is not None


def test_a_nested_trace_events_array_is_refused(tmp_path: Path, read: Read) -> None:
    text = '{"inner": ' + Trace.window().kineto() + "}"
    with pytest.raises(InputError, match="around traceEvents"):
        read(write_text(tmp_path / "t.gz", text))


@pytest.mark.parametrize("document", ["[]", "5", "", "{}", '{"traceEvents": 5}', "no json"])
def test_documents_without_events_are_refused(document: str, tmp_path: Path, read: Read) -> None:
    with pytest.raises(InputError, match="traceEvents"):
        read(write_text(tmp_path / "t.gz", document))


def test_an_empty_array_is_readable_and_no_window(tmp_path: Path, read: Read) -> None:
    window = read(write_text(tmp_path / "t.gz", '{"traceEvents": [ ], "traceName": "x"}'))
    codes = [reason.code for reason in window.reasons]
    assert codes == ["profiler_step_missing", "execute_annotation_count", "no_kernels"]
    assert window.kernel == Tally(0, 0)


def test_a_gzip_cut_anywhere_is_refused(tmp_path: Path, read: Read) -> None:
    whole = Trace.window().write(tmp_path / "t.gz").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.gz").write_bytes(whole[:length])
        with pytest.raises(InputError) as caught:
            read(tmp_path / "cut.gz")
        assert caught.value.path == str(tmp_path / "cut.gz")
        assert caught.value.offset is not None


def test_a_text_cut_anywhere_is_refused(tmp_path: Path, read: Read) -> None:
    whole = Trace.window(range(2, 4)).kineto()
    for length in range(len(whole.rstrip())):
        with pytest.raises(InputError) as caught:
            read(write_text(tmp_path / "cut.gz", whole[:length]))
        assert caught.value.offset is not None
        assert caught.value.offset <= length


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-8] + bytes(4) + data[-4:], "checksum"),
        (lambda data: data[:-4] + bytes(4), "checksum"),
        (lambda data: data + b"junk", "no gzip member"),
        (lambda data: data + b"\x1f", "no gzip member"),
        (lambda data: b"PK" + data, "not a gzip"),
        (lambda data: b"", "empty file"),
        (lambda data: data[:100] + b"\xff" * 40 + data[140:], "gzip stream"),
    ],
)
def test_damaged_gzip_is_refused(
    damage: Callable[[bytes], bytes], said: str, tmp_path: Path, read: Read
) -> None:
    path = Trace.window().write(tmp_path / "t.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=said):
        read(path)


def test_members_and_zero_padding_are_read(tmp_path: Path, read: Read) -> None:
    text = Trace.window().kineto().encode()
    members = gzip.compress(text[:1000]) + gzip.compress(b"") + gzip.compress(text[1000:])
    (tmp_path / "t.gz").write_bytes(members + bytes(20_000))
    window = read(tmp_path / "t.gz")
    assert window.kernel == Tally(8, 800_000)
    assert window.gzip_members == 3
    assert [warning.code for warning in window.warnings] == ["gzip_members"]


@pytest.mark.parametrize("name", ["absent.gz", "."])
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path, read: Read) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / name)


@pytest.mark.parametrize("field", ["ts", "dur"])
def test_a_number_of_thousands_of_digits_is_refused(field: str, tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.events[3][field] = Text("1" + "0" * 5000)
    with pytest.raises(SchemaError, match=r"some_kernel.*beyond 62 bits") as caught:
        read(trace.write(tmp_path / "t.gz"))
    assert caught.value.offset is not None
    trace.events[3][field] = Text("100.5" + "0" * 5000)
    assert read(trace.write(tmp_path / "u.gz")).all_kernels.events == 8


_NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("layout", ["kineto", "compact"])
@pytest.mark.parametrize("place", ["event", "head", "tail"])
def test_endless_nesting_is_refused(place: str, layout: str, tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    if place == "event":
        trace.events[3]["args"] |= {"deep": Text(_NESTED)}
    else:
        getattr(trace, place)["deep"] = Text(_NESTED)
    with pytest.raises(InputError, match="nested too deeply") as caught:
        read(trace.write(tmp_path / "t.gz", layout))
    assert caught.value.offset is not None
