"""Parts of the controller: options, private places, commands, launch configurations, rounds."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.common import Gate
from opprof.campaign.checks import _told_once
from opprof.campaign.commands import CommandLog, iso, last_command
from opprof.campaign.detach import Starter, start_detached
from opprof.campaign.meeting import RoundMeeting
from opprof.campaign.options import (
    Limits,
    Options,
    check_variables,
    clean_environment,
    limits_of,
    make_sources,
    own_environment,
    pairs,
    sources_from_log,
)
from opprof.campaign.server import (
    Launch,
    RunPlace,
    free_port,
    launch_of,
    served_model,
    server_environment,
)
from opprof.engines.sim.flags import not_modelled
from opprof.errors import EnvironmentFailure, InputError, StateConflict
from opprof.protocol import load_protocol

WORDS = st.text(
    st.characters(
        blacklist_categories=("Cs",),
        blacklist_characters="\0\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029",
    ),
    max_size=20,
)


# ------------------------------------------------------------------------ private places


def test_private_paths_come_back_from_the_command_log(tmp_path: Path) -> None:
    sources = make_sources(tmp_path / "with blank", [f"P01={tmp_path / 'a=b.jsonl'}"])
    log = CommandLog(tmp_path / "commands.log", lambda: 1)
    log.add("controller", ["python", "-m", "opprof", "c", *sources.flags()], {})
    log.line("note", "something else", 2)
    found = sources_from_log(tmp_path / "commands.log")
    assert found.private == tmp_path / "with blank"
    assert found.manifest("P01") == tmp_path / "a=b.jsonl"
    assert found.manifest("P02") == tmp_path / "with blank" / "P02.jsonl"


def test_private_paths_are_redacted_by_name(tmp_path: Path) -> None:
    sources = make_sources(tmp_path / "p", [f"P01={tmp_path / 'm' / 'P01.jsonl'}"])
    text = f"--manifest {tmp_path}/m/P01.jsonl --x {tmp_path}/p/P02.jsonl"
    assert sources.redact(text) == "--manifest ${MANIFEST_P01} --x ${PRIVATE}/P02.jsonl"


def test_without_a_place_for_a_manifest_there_is_a_reason() -> None:
    with pytest.raises(InputError, match="no manifest for P07"):
        make_sources(None, []).manifest("P07")


def test_a_log_without_a_controller_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="records no controller"):
        sources_from_log(tmp_path / "commands.log")


@given(words=st.lists(WORDS, min_size=1, max_size=6))
def test_any_command_survives_its_log(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "commands.log"
    CommandLog(path, lambda: 1).add("client", words, {})
    assert last_command(path, "client") == words


def test_a_cut_last_line_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "commands.log"
    CommandLog(path, lambda: 1).add("controller", ["first"], {})
    with path.open("ab") as stream:
        stream.write(b"1970-01-01T00:00:00Z controller seco")
    assert last_command(path, "controller") == ["first"]


def test_secrets_are_in_no_command_log(tmp_path: Path) -> None:
    path = tmp_path / "commands.log"
    environment = {"OPPROF_API_KEY": "s3cret", "VLLM_API_KEY": "s3cret", "OPPROF_RUN": "P01"}
    CommandLog(path, lambda: 1).add("server", ["vllm"], environment)
    text = path.read_text()
    assert "s3cret" not in text
    assert "OPPROF_RUN=P01" in text


def test_times_keep_their_nanoseconds() -> None:
    assert iso(1_796_020_004_123_456_789) == "2026-11-30T06:26:44.123456789Z"


# ------------------------------------------------------------------------------- options


def test_limits_are_changed_by_name() -> None:
    assert limits_of([]) == Limits()
    assert limits_of(["ready_s=12.5"]).ready_s == 12.5
    for bad in ("reedy_s=1", "ready_s=soon", "ready_s=0", "ready_s"):
        with pytest.raises(InputError):
            limits_of([bad])


@pytest.mark.parametrize(
    ("name", "most_s", "watch"),
    [
        ("heartbeat_s", 10, "budget"),
        ("sample_s", 60, "foreign processes"),
        ("look_s", 10, "health"),
    ],
)
def test_no_limit_switches_a_watch_off(name: str, most_s: int, watch: str) -> None:
    assert getattr(limits_of([f"{name}={most_s}"]), name) == most_s
    for value in ("100000", "1e9", f"{most_s}.001"):
        with pytest.raises(InputError, match=rf"{name} is at most {most_s} s: .*{watch}"):
            limits_of([f"{name}={value}"])
    with pytest.raises(InputError, match="there are ready_s"):
        limits_of(["reedy_s=1"])


def test_pairs_are_named_once() -> None:
    assert pairs(["A=1", "B=x=y"], "--var") == {"A": "1", "B": "x=y"}
    for bad in (["A"], ["=1"], ["A=1", "A=2"]):
        with pytest.raises(InputError):
            pairs(bad, "--var")


@pytest.mark.parametrize("values", [{}, {"MODEL": "m", "OTHER": "x"}, {"MODEL": "m", "TP": "2"}])
def test_variables_fit_the_protocol(values: dict[str, str]) -> None:
    with pytest.raises(InputError):
        check_variables(values, {"MODEL": "the model", "PRIVATE": "the folder"})


def test_children_inherit_no_steering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = {
        "OPPROF_PROTOCOL": "none",
        "OPPROF_CRASH_AT": "#1",
        "VLLM_OPPROF_DIR": "x",
        "OPPROF_API_KEY": "k",
        "PYTHONPATH": "src:",
        "HOME": "h",
    }
    monkeypatch.chdir(tmp_path)
    kept = clean_environment(environment)
    assert kept == {"OPPROF_API_KEY": "k", "PYTHONPATH": str(tmp_path / "src"), "HOME": "h"}
    own = own_environment(environment)["PYTHONPATH"].split(os.pathsep)
    assert (Path(own[0]) / "opprof" / "code_hash.py").is_file()


# -------------------------------------------------------------------------------- server


PLACE = RunPlace("P01-C00-moderate", Path('/run/"x"'), 8123, "GPU-a,GPU-b")


def _launch(
    engine: str, options: Options | None = None, server: Mapping[str, Any] | None = None
) -> Launch:
    protocol = load_protocol("phase3")
    assert protocol is not None
    changed = msgspec.structs.replace(protocol.file.server, **(server or {}))
    protocol = replace(protocol, file=msgspec.structs.replace(protocol.file, server=changed))
    config = protocol.config("C10")
    assert config is not None
    launch = launch_of(
        protocol,
        config,
        engine,  # type: ignore[arg-type]
        {"MODEL": "/models/a b"},
        options or Options(),
        python="python3",
        time_scale=0.5,
        seed=3,
    )
    assert served_model(launch) == "/models/a b"
    return launch


def _command(engine: str, options: Options | None = None) -> list[str]:
    return _launch(engine, options).command(PLACE)


def test_the_protocols_command_is_filled_word_by_word() -> None:
    words = _command("vllm")
    assert words[:3] == ["vllm", "serve", "/models/a b"]
    assert words[words.index("--max-num-seqs") + 1] == "64"
    assert words[words.index("--port") + 1] == "8123"
    assert (
        '"torch_profiler_dir":"/run/\\"x\\"/traces"' in words[words.index("--profiler-config") + 1]
    )


def test_the_protocols_shutdown_timeout_is_the_servers() -> None:
    for engine in ("vllm", "sim"):
        words = _launch(engine, server={"shutdown_timeout_s": 7.5}).command(PLACE)
        assert words[words.index("--shutdown-timeout") + 1] == "7.5"
    with pytest.raises(InputError, match=r"leaves out server\.shutdown_timeout_s"):
        _launch("vllm", server={"shutdown_timeout_s": None})
    with pytest.raises(InputError, match="unknown field"):
        limits_of(["shutdown_timeout_s=5"])


def test_the_servers_environment_is_the_protocols() -> None:
    frozen = {
        "CUDA_VISIBLE_DEVICES": "${GPU_IDS}",
        "VLLM_OPPROF_DIR": "${RUN_DIR}/opprof",
        "OMP_NUM_THREADS": "${TP}",
        "CACHE": "${MODEL}/cache",
        "TRACES": "${TRACE_TMP}",
    }
    launch = _launch("vllm", Options(engine_environment={"MORE": "1"}), {"environment": frozen})
    # What is the same for every run of the configuration is filled, and hashed with it.
    assert launch.environment["CACHE"] == "/models/a b/cache"
    assert launch.environment["TRACES"] == "${TRACE_TMP}"
    found = server_environment(launch, {"OPPROF_ROLE": "server"}, PLACE, own=False)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert found["VLLM_OPPROF_DIR"] == '/run/"x"/opprof'
    assert (found["OMP_NUM_THREADS"], found["MORE"]) == ("1", "1")
    assert found["TRACES"] == '/run/"x"/traces'
    without = launch.variables(replace(PLACE, devices=None))
    assert "CUDA_VISIBLE_DEVICES" not in without
    assert "TRACES" in without


def test_a_frozen_variable_is_not_changed_by_a_campaign() -> None:
    options = Options(engine_environment={"VLLM_USE_V2": "0"})
    with pytest.raises(InputError, match=r"VLLM_USE_V2: the protocol's \[server\.environment\]"):
        _launch("vllm", options, {"environment": {"VLLM_USE_V2": "1"}})


def test_another_interpreter_runs_the_module() -> None:
    words = _command("vllm", Options(python="/env/python"))
    assert words[:4] == ["/env/python", "-m", "vllm.entrypoints.openai.api_server", "--model"]


def test_the_embedded_engine_has_the_same_configuration() -> None:
    words = _command("sim")
    assert words[:4] == ["python3", "-m", "opprof", "serve-sim"]
    assert words[words.index("--max-num-seqs") + 1] == "64"
    assert words[words.index("--time-factor") + 1] == "2.0"
    virtual = _command("sim-virtual")
    assert "--virtual" in virtual
    assert "--time-factor" not in virtual
    # Its numbers are the run's own: equal for every attempt, others for its confirmation.
    assert virtual[virtual.index("--seed") :][:4] == ["--seed", "3", "--stream", PLACE.run]


def test_the_embedded_engine_heeds_what_it_models_and_says_what_it_does_not() -> None:
    command = "vllm serve ${MODEL} --enforce-eager --max-model-len 1024 --kv-cache-dtype fp8"
    options = Options(server_command=command)
    words = _command("sim", options)
    assert "--enforce-eager" in words
    assert words[words.index("--max-model-len") + 1] == "1024"
    assert "--kv-cache-dtype" not in words
    protocol = load_protocol("phase3")
    assert protocol is not None
    rows = [row.flags for row in protocol.file.configs]
    assert not_modelled(command.split(), rows) == ["--kv-cache-dtype"]
    assert not_modelled(protocol.file.server.command.split(), rows) == []


def test_two_values_for_one_setting_are_refused() -> None:
    command = "vllm serve ${MODEL} --max-num-seqs 32"
    with pytest.raises(InputError, match="both set --max-num-seqs"):
        _launch("vllm", Options(server_command=command))


def test_an_open_variable_is_refused() -> None:
    with pytest.raises(InputError, match="ELSEWHERE"):
        _launch("vllm", Options(server_command="vllm serve ${MODEL} --x ${ELSEWHERE}"))


def test_a_port_that_somebody_has_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(EnvironmentFailure, match="in use"):
            free_port(other.getsockname()[1])
    assert free_port(0) > 0


# -------------------------------------------------------------------------------- rounds


def test_the_target_loads_last_and_ends_first() -> None:
    async def go() -> list[str]:
        meeting, told = RoundMeeting("T", ["A", "B"]), []

        async def background(name: str) -> None:
            await meeting.may_load(name)
            told.append(f"{name} loads")
            await meeting.loads(name)
            await meeting.until_over()
            told.append(f"{name} ends")
            await meeting.leave(name)

        async def target() -> None:
            await meeting.may_load("T")
            told.append("T loads")
            await meeting.leave("T")

        async with asyncio.timeout(300):
            await asyncio.gather(target(), background("A"), background("B"))
        return told

    told = asyncio.run(go())
    assert told.index("T loads") == 2
    assert {"A ends", "B ends"} == set(told[3:])


def test_a_background_that_breaks_off_lets_the_target_go() -> None:
    async def go() -> None:
        meeting = RoundMeeting("T", ["A", "B"])
        waiting = asyncio.create_task(meeting.may_load("T"))
        await meeting.loads("A")
        await meeting.leave("B")
        async with asyncio.timeout(300):
            await waiting

    with pytest.raises(EnvironmentFailure, match="B broke off"):
        asyncio.run(go())


# --------------------------------------------------------------------------------- detach


def _detach(tmp_path: Path, script: str) -> str:
    command = [sys.executable, "-c", script]
    return start_detached(command, tmp_path / "log", ready_s=60)


_TELL = "import os, sys; fd = int(sys.argv[sys.argv.index('--ready-fd') + 1]); "


def test_a_detached_command_has_its_own_session(tmp_path: Path) -> None:
    said = _detach(
        tmp_path, _TELL + "os.write(fd, f'ok {os.getsid(0)} {os.getppid()}\\n'.encode())"
    )
    session, parent = map(int, said.split())
    assert session != os.getsid(0)
    assert parent != os.getpid()


def test_its_refusal_is_the_starters_error(tmp_path: Path) -> None:
    with pytest.raises(StateConflict, match="owned by another"):
        _detach(tmp_path, _TELL + "os.write(fd, b'E-STATE owned by another\\n')")


def test_its_silent_death_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="ended at its start"):
        _detach(tmp_path, "print('why')")
    assert (tmp_path / "log").read_text() == "why\n"


def test_nobody_to_report_to_is_fine() -> None:
    Starter(None).tell("ok")


def test_a_starter_is_told_once() -> None:
    reader, writer = os.pipe()
    starter = Starter(writer)
    starter.tell("ok small\n1")
    # The number may be another file's by now.
    os.dup2(reader, writer)
    starter.tell("E-STATE late")
    os.close(writer)
    assert os.read(reader, 100) == b"ok small 1\n"
    os.close(reader)


@pytest.mark.parametrize("text", ["a\nb", "a\x7f", "a\udcff", "a\u2028b"])
def test_what_no_record_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no record can hold"):
        make_sources(Path("/p") / text, [])
    with pytest.raises(InputError, match="no record can hold"):
        make_sources(None, [f"P01=/p/{text}"])


def test_an_edited_command_log_has_its_line_named(tmp_path: Path) -> None:
    log = tmp_path / "commands.log"
    log.write_text("T controller opprof --private p\nT controller 'opprof\n")
    with pytest.raises(InputError, match=r"commands.log:2: is no command: No closing quotation"):
        last_command(log, "controller")


def test_a_limit_is_finite() -> None:
    with pytest.raises(InputError, match="ready_s"):
        limits_of(["ready_s=inf"])


def test_a_program_is_a_whole_path_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opprof.cli.campaign import _program

    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    assert _program("./python") == str(tmp_path / "python")
    with pytest.raises(InputError, match="no such program"):
        _program("./absent")


def test_no_host_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opprof.cli.campaign import _whole_path

    monkeypatch.chdir(tmp_path)
    (tmp_path / "host.toml").touch()
    assert _whole_path("") == ""
    assert _whole_path("dash0") == "dash0"
    assert _whole_path("host.toml") == str(tmp_path / "host.toml")


def test_a_reason_that_client_and_analysis_share_is_told_once() -> None:
    recovery = "recovery (window0): completion rate 28/s against 13/s in segment C"
    found = {
        "client": Gate("client", "fail", f"not accepted: {recovery}; drain: too long"),
        "layer1": Gate("layer1", "fail", recovery),
        "layer2": Gate("layer2", "fail", f"{recovery}; join: no step"),
        "sanity": Gate("sanity", "pass", "no red flag"),
    }
    assert _told_once(found) == [
        f"client: not accepted: {recovery}; drain: too long",
        "layer1: for the same reason",
        "layer2: join: no step",
    ]
