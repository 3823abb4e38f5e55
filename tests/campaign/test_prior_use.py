"""An amended prior use is charged, and a ledger that declares another one is found (A-P3-4)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from campaign_small import small_manifests, small_protocol

from opprof.artifacts.campaign import Charge
from opprof.campaign import amend as module
from opprof.campaign.amend import take_amendment
from opprof.campaign.begin import Request, create_campaign
from opprof.campaign.binding import bind
from opprof.campaign.ledger import balance
from opprof.campaign.ledger_file import read_ledger
from opprof.campaign.options import Options, make_sources
from opprof.campaign.soundness import check_prior
from opprof.campaign.store import Store
from opprof.errors import SchemaError, StateConflict
from opprof.integrity.checks import Checks
from opprof.integrity.ledger import NAME, check_ledger
from opprof.protocol import load_protocol
from opprof.protocol.amend import Request as Amending
from opprof.protocol.amend import amend_protocol

KEY = "budget.gpu_hours_used"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    sources = make_sources(small_manifests(tmp_path / "private"), ())
    request = Request(
        protocol=small_protocol(tmp_path / "small.toml"),
        out=tmp_path / "c",
        engine="sim-virtual",
        variables={"MODEL": "tiny"},
        sources=sources,
        time_scale=1.0,
        seed=1,
        executor="local",
        hosts=("h",),
        options=Options(serial=True, bind_cpus=False),
    )
    made = create_campaign(request, lambda _: None)
    bind(made, made.campaign(), sources)
    return made


def amended(store: Store, number: int, hours: str, key: str = KEY) -> Path:
    """An amendment of the protocol in force."""
    protocol = load_protocol(store.protocol)
    assert protocol is not None
    asked = Amending(f"A-X-{number}", "prior use", "recounted", "2026-11-30", [(key, hours)])
    path = store.folder.parent / f"amended-{number}.toml"
    path.write_bytes(amend_protocol(protocol, asked))
    return path


def take(store: Store, path: Path) -> list[str]:
    said: list[str] = []
    take_amendment(store, path, (), said.append)
    return said


def charges(store: Store) -> list[Charge]:
    return read_ledger(store.folder / NAME)


def is_sound(store: Store) -> None:
    protocol = load_protocol(store.protocol)
    assert protocol is not None
    check_prior(store, charges(store), protocol.sha256)


def verified(store: Store) -> list[str]:
    """What `verify` says of the ledger."""
    protocol, checks = load_protocol(store.protocol), Checks(store.folder)
    assert protocol is not None
    check_ledger(checks, store.campaign().protocol_sha256, protocol.sha256)
    return [check.reason for check in checks.found]


def test_an_amended_prior_use_is_charged_once(store: Store) -> None:
    before = charges(store)
    path = amended(store, 1, "0.25")
    said = take(store, path)
    assert "ledger: +0.25 GPU hours" in said[-2]
    lines = charges(store)
    assert lines[:-1] == before
    assert (lines[-1].kind, lines[-1].gpu_seconds) == ("prior", 900.0)
    assert balance(lines).consumed_hours == 0.25
    is_sound(store)
    assert verified(store) == []
    take(store, path)
    assert charges(store) == lines


def test_a_later_amendment_may_declare_less(store: Store) -> None:
    take(store, amended(store, 1, "0.25"))
    take(store, amended(store, 2, "0.1"))
    take(store, amended(store, 3, "2.0", key="budget.gpu_hours_max"))
    assert balance(charges(store)).consumed_hours == 0.1
    assert [line.kind for line in charges(store)] == ["prior"] * 3
    is_sound(store)
    assert verified(store) == []


def test_an_amendment_that_was_broken_off_is_finished(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = amended(store, 1, "0.25"), module.write_atomic

    def breaks(target: Path, data: bytes) -> None:
        if target == store.protocol:
            raise KeyboardInterrupt
        write(target, data)

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_atomic", breaks)
        with pytest.raises(KeyboardInterrupt):
            take(store, path)
    with pytest.raises(StateConflict, match="once more with --protocol"):
        is_sound(store)
    take(store, path)
    assert balance(charges(store)).consumed_hours == 0.25
    is_sound(store)


def test_what_an_earlier_version_did_not_charge_is_charged_when_taken_again(store: Store) -> None:
    opening = (store.folder / NAME).read_bytes()
    path = amended(store, 1, "0.25")
    take(store, path)
    (store.folder / NAME).write_bytes(opening)
    with pytest.raises(StateConflict, match=r"0 GPU hours.* in force.* 0.25 "):
        is_sound(store)
    assert verified(store)
    take(store, path)
    is_sound(store)


@pytest.mark.parametrize("number", [0, 1])
def test_an_edited_prior_line_is_found(store: Store, number: int) -> None:
    take(store, amended(store, 1, "0.25"))
    lines = charges(store)
    lines[number] = msgspec.structs.replace(lines[number], gpu_seconds=7.2)
    (store.folder / NAME).write_bytes(b"".join(msgspec.json.encode(c) + b"\n" for c in lines))
    with pytest.raises(StateConflict, match=r"its prior use is .* declares .*gpu_hours_used"):
        is_sound(store)
    [reason, *_] = verified(store)
    assert "its prior use is 0.002 GPU hours" in reason


def test_a_prior_line_of_no_kept_protocol_is_found(store: Store) -> None:
    stray = msgspec.structs.replace(charges(store)[0], protocol_sha256="0" * 64)
    with (store.folder / NAME).open("ab") as stream:
        stream.write(msgspec.json.encode(stray) + b"\n")
    with pytest.raises(StateConflict, match="which the campaign does not keep"):
        is_sound(store)
    with (store.folder / NAME).open("ab") as stream:
        stream.write(msgspec.json.encode(charges(store)[0]) + b"\n")
    with pytest.raises(SchemaError, match="declares once more"):
        charges(store)


def test_the_ledger_that_verify_cannot_read_is_named(store: Store) -> None:
    (store.folder / NAME).write_bytes(b"{}\n")
    assert "no charge" in verified(store)[0]
    (store.folder / NAME).unlink()
    assert verified(store) == ["file not found"]
