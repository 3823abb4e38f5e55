"""The ledger's file: appended whole, mended after a crash, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from campaign_builders import phase3

from opprof.artifacts.campaign import Charge
from opprof.campaign.ledger import opening, reserve
from opprof.campaign.ledger_file import create_ledger, open_ledger, read_ledger
from opprof.errors import EnvironmentFailure, InputError, SchemaError, StateConflict


def _opening(*, simulated: bool = False) -> Charge:
    return opening(phase3().budget, wall_ns=1, simulated=simulated)


def _lines(count: int = 2, *, simulated: bool = False) -> list[Charge]:
    costs = {f"run{i}": (1, 10.0) for i in range(count)}
    return reserve(costs, wave=1, wall_ns=2, simulated=simulated)


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = create_ledger(path, _opening())
    ledger.append(_lines())
    ledger.append([])
    assert list(ledger.charges) == [_opening(), *_lines()]
    assert list(open_ledger(path, wall_ns=9).charges) == list(ledger.charges)
    assert read_ledger(path) == list(ledger.charges)


def test_every_cut_of_the_last_line_is_mended_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    create_ledger(path, _opening()).append(_lines())
    data = path.read_bytes()
    last = data[:-1].rfind(b"\n") + 1
    for end in range(last + 1, len(data)):
        path.write_bytes(data[:end])
        assert len(read_ledger(path)) == 2
        ledger = open_ledger(path, wall_ns=5)
        kept = 3 if end == len(data) - 1 else 2
        kinds = ["prior", "reserve", "reserve"]
        assert [c.kind for c in ledger.charges] == [*kinds[:kept], "note"]
        assert "mended" in ledger.charges[-1].note
        assert ledger.charges[-1].gpu_seconds == 0
        # Mended once: a second look finds nothing to mend.
        assert list(open_ledger(path, wall_ns=6).charges) == list(ledger.charges)


@pytest.mark.parametrize(
    ("number", "bad", "reason"),
    [
        (2, b"not json", "is no charge"),
        (2, b'{"schema":1}', "is no charge"),
        (1, b"", "is no charge"),
        (2, b"\x00" * 40, "is no charge"),
    ],
)
def test_other_damage_is_refused_with_its_line(
    tmp_path: Path, number: int, bad: bytes, reason: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    create_ledger(path, _opening()).append(_lines())
    lines = path.read_bytes().splitlines()
    lines[number - 1] = bad
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(SchemaError, match=reason) as caught:
        open_ledger(path, wall_ns=5)
    assert caught.value.line == number


def test_structure_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def write(*charges: Charge) -> None:
        path.write_bytes(b"".join(msgspec.json.encode(c) + b"\n" for c in charges))

    write(*_lines())
    with pytest.raises(SchemaError, match="opens with something else"):
        read_ledger(path)
    write(_opening(), _opening())
    with pytest.raises(SchemaError, match="once more"):
        read_ledger(path)
    write(_opening(), *_lines(simulated=True))
    with pytest.raises(SchemaError, match="simulated GPU time in a measured ledger"):
        read_ledger(path)
    write(_opening(), msgspec.structs.replace(_lines()[0], kind="run", gpu_seconds=-5.0))
    with pytest.raises(SchemaError, match="wrong sign"):
        read_ledger(path)
    path.write_bytes(b"")
    with pytest.raises(SchemaError, match="empty ledger"):
        open_ledger(path, wall_ns=1)
    with pytest.raises(InputError, match="not found"):
        open_ledger(tmp_path / "absent.jsonl", wall_ns=1)


def test_simulated_and_measured_time_never_mix(tmp_path: Path) -> None:
    ledger = create_ledger(tmp_path / "ledger.jsonl", _opening(simulated=True))
    assert ledger.simulated
    with pytest.raises(StateConflict, match="measured GPU time in a simulated ledger"):
        ledger.append(_lines())
    assert len(read_ledger(ledger.path)) == 1


def test_a_ledger_is_never_begun_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    create_ledger(path, _opening())
    with pytest.raises(StateConflict, match="already"):
        create_ledger(path, _opening())
    with pytest.raises(StateConflict, match="prior use"):
        create_ledger(tmp_path / "other.jsonl", _lines()[0])


def test_what_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = create_ledger(path, _opening())
    path.unlink()
    path.mkdir()
    with pytest.raises(EnvironmentFailure, match="cannot write"):
        ledger.append(_lines())
    assert len(ledger.charges) == 1


def test_half_of_an_append_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = create_ledger(path, _opening())
    before = path.read_bytes()
    calls = iter([OSError(28, "No space left on device")])

    def full(_descriptor: int) -> None:
        if (error := next(calls, None)) is not None:
            raise error

    monkeypatch.setattr("opprof.campaign.ledger_file.os.fsync", full)
    with pytest.raises(EnvironmentFailure, match="No space left"):
        ledger.append(_lines())
    assert path.read_bytes() == before
    assert len(ledger.charges) == 1
    ledger.append(_lines())
    assert read_ledger(path) == list(ledger.charges)
