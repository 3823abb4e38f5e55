"""Expected against effective configuration, on engine-config.json of real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from opprof.artifacts.engine import EngineReport
from opprof.campaign.attempt import Facts
from opprof.campaign.effective import (
    Expected,
    cache_key,
    compile_cache_gate,
    differences,
    effective_config,
    engine_tested,
    hash_gate,
    observed,
    server_health,
)
from opprof.campaign.engine_checks import health_gate
from opprof.campaign.server_log import ServerLog, parse_server_log, read_server_log
from opprof.protocol import load_protocol

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "h200-plugin-runs"
DATA = Path(__file__).parent / "data"
PROTOCOL = load_protocol("phase3")
assert PROTOCOL is not None


def expected(config: str = "C00") -> Expected:
    assert PROTOCOL is not None
    row = PROTOCOL.config(config)
    assert row is not None
    file = PROTOCOL.file
    # The kept runs were served with the plugin's own 30 seconds (docs/evidence/plugin-h200.md).
    server = msgspec.structs.replace(file.server, shutdown_timeout_s=30)
    return Expected(row, server, file.pinned, file.layer2)


def report(run: str = "P01-C00-saturation", **changes: Any) -> EngineReport:
    path = RUNS / run / "opprof" / "engine-config.json"
    found = msgspec.json.decode(path.read_bytes(), type=EngineReport)
    config = {k: changes.pop(k) for k in list(changes) if k in found.config.__struct_fields__}
    origin = {k: changes.pop(k) for k in list(changes) if k in ("hooked", "torch", "tested")}
    return msgspec.structs.replace(
        found,
        config=msgspec.structs.replace(found.config, **config),
        provenance=msgspec.structs.replace(found.provenance, **origin),
        **changes,
    )


TP1_LOG = read_server_log(DATA / "server-h200-tp1.log")


def test_real_servers_run_as_declared() -> None:
    for run, config, log in (
        ("P01-C00-saturation", "C00", "tp1"),
        ("P01-C00-TP2-saturation", "C00-TP2", "tp2"),
    ):
        found = report(run)
        gate = effective_config(
            expected(config), found, read_server_log(DATA / f"server-h200-{log}.log"), found
        )
        assert (gate.outcome, gate.reason) == ("pass", "as declared")
        assert gate.numbers["moe_backend"] == "TRITON"
        assert gate.numbers["not_in_log"] == "max_num_seqs"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_num_seqs": 256}, "max_num_seqs"),
        ({"max_num_batched_tokens": 16384}, "max_num_batched_tokens"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"chunked_prefill": False}, "chunked_prefill"),
        ({"prefix_caching": False}, "prefix_caching"),
        ({"dtype": "float16"}, "dtype"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"profiler_schedule": {"wait": 0, "warmup": 2, "active": 5}}, "profiler_schedule"),
        ({"profiler_schedule": {}}, "profiler_schedule"),
        ({"shutdown_timeout_s": 0}, "shutdown_timeout_s"),
        ({"shutdown_timeout_s": 60}, "shutdown_timeout_s"),
        ({"prefix_counters": False}, "prefix_counters"),
        ({"workers_error": "no answer", "workers": []}, "workers_error"),
        ({"engine": "another"}, "engine"),
    ],
)
def test_a_changed_value_stops(changes: dict[str, Any], field: str) -> None:
    gate = effective_config(expected(), report(**changes))
    assert gate.outcome == "fail"
    assert f"{field} " in gate.reason
    found = {each.field: each for each in differences(expected(), report(**changes))}
    assert found[field].against == "protocol"
    assert found[field].seen != found[field].expected


def test_every_configuration_of_the_protocol_expects_its_own_values() -> None:
    """C00's server under another configuration's name differs in just that configuration's axis."""
    axes = {
        config: {each.field for each in differences(expected(config), report())}
        for config in ("C00", "C10", "C01", "C11", "C00-TP2")
    }
    assert axes == {
        "C00": set(),
        "C10": {"max_num_seqs"},
        "C01": {"max_num_batched_tokens"},
        "C11": {"max_num_seqs", "max_num_batched_tokens"},
        "C00-TP2": {"tensor_parallel_size", "workers"},
    }


def test_another_back_end_is_told_and_stops_nothing() -> None:
    gate = effective_config(expected(), report(moe_backend="FlashInfer CUTLASS"))
    assert gate.outcome == "pass"
    assert gate.numbers["moe_backend_as_expected"] is False
    assert gate.numbers["moe_backend_expected"] == "TRITON"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"moe_backend": "FlashInfer CUTLASS"}, "moe_backend"),
        ({"attention_backend": "TRITON_ATTN"}, "attention_backend"),
        ({"cudagraph_mode": "PIECEWISE"}, "cudagraph_mode"),
        ({"cudagraph_capture_sizes": [1, 2]}, "cudagraph_capture_sizes"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"torch": "2.12"}, "torch"),
        ({"v2_model_runner": True}, "v2_model_runner"),
    ],
)
def test_a_change_since_the_first_server_stops(changes: dict[str, Any], field: str) -> None:
    (found,) = differences(expected(), report(**changes), first=report())
    assert (found.field, found.against) == (field, "first run")


def test_of_many_hooked_functions_only_the_changed_ones_are_told() -> None:
    changed = dict(report().provenance.hooked)
    name = next(iter(changed))
    changed[name] = "0" * 64
    (found,) = differences(expected(), report(hooked=changed), first=report())
    assert found.seen == {name: "0" * 64}
    assert set(found.expected) == {name}


def test_the_size_of_the_cache_may_differ() -> None:
    assert differences(expected(), report(kv_cache_blocks=1), first=report()) == []


def test_a_log_that_contradicts_the_engine_stops() -> None:
    log = msgspec.structs.replace(TP1_LOG, max_num_batched_tokens=2048)
    gate = effective_config(expected(), report(), log)
    assert gate.reason == "max_num_batched_tokens 8192, log: 2048"
    assert effective_config(expected(), report(), TP1_LOG).outcome == "pass"
    assert effective_config(expected(), report(), ServerLog(lines=0)).outcome == "pass"


def test_an_embedded_engine_is_judged_by_its_values() -> None:
    gate = effective_config(
        expected(), report(engine="opprof-sim", simulated=True, shutdown_timeout_s=0)
    )
    assert gate.outcome == "pass"
    assert gate.numbers["simulated"] is True


def test_compile_cache_keys() -> None:
    assert cache_key(report()) == "98ebef169f"
    assert cache_key(report(workers=[]), TP1_LOG) == "98ebef169f"
    assert cache_key(report(workers=[])) is None
    two = report("P01-C00-TP2-saturation")
    assert cache_key(two) == "45d4119afc"
    odd = msgspec.structs.replace(two.workers[0], compile_cache_key="aaaa")
    assert cache_key(report(workers=[odd, two.workers[1]])) == "45d4119afc+aaaa"
    for seen, first, compiled, outcome in (
        ("a", None, True, "pass"),
        ("a", "a", True, "pass"),
        ("b", "a", True, "fail"),
        (None, "a", True, "fail"),
        (None, None, False, "not_evaluable"),
    ):
        assert compile_cache_gate(seen, first, compiled=compiled).outcome == outcome


def test_hashes() -> None:
    frozen = {"client": "a" * 64, "manifest": "b" * 64}
    assert hash_gate(frozen, frozen | {"further": "c" * 64}).outcome == "pass"
    gate = hash_gate(frozen, {"client": "d" * 64})
    assert gate.outcome == "fail"
    assert gate.numbers["different"] == 2
    assert "manifest is absent" in gate.reason
    assert "client is dddddddddddd, frozen as aaaaaaaaaaaa" in gate.reason


def test_untested_engines() -> None:
    assert engine_tested(report()).outcome == "pass"
    assert engine_tested(report(tested=False)).outcome == "fail"


def test_what_is_kept_of_an_effective_configuration() -> None:
    kept = observed(expected(), report(), TP1_LOG)
    assert kept["engine"]["max_num_seqs"] == kept["expected"]["max_num_seqs"] == 1024
    assert kept["log"]["max_num_batched_tokens"] == 8192
    assert "max_num_seqs" not in kept["log"]
    msgspec.json.encode(kept)


def test_server_health() -> None:
    assert server_health(TP1_LOG, exit_status=0, signalled=True).outcome == "pass"
    assert server_health(None, exit_status=None, signalled=False).outcome == "pass"
    killed = read_server_log(DATA / "server-h200-killed.log")
    gate = server_health(killed, exit_status=0, signalled=True)
    assert gate.outcome == "fail"
    assert "engine_dead x1, first at server.log:17 [async_llm.py:704]" in gate.reason
    gate = server_health(TP1_LOG, exit_status=-9, signalled=False, oom_kills=(2, 3))
    assert gate.reason == (
        "the server ended by itself with -9; the kernel killed 1 processes for want of memory"
    )
    assert (
        server_health(TP1_LOG, exit_status=0, signalled=True, oom_kills=(None, 3)).numbers[
            "oom_kills"
        ]
        is None
    )


def test_a_kind_whose_lines_are_no_longer_kept_is_still_told() -> None:
    lines = [f"(E pid=1) ERROR 11-30 03:21:52 [a{n}.py:1] x" for n in range(30)]
    log = parse_server_log([*lines, "CUDA error: late"])
    gate = server_health(log, exit_status=0, signalled=True)
    assert "cuda_error x1" in gate.reason


def test_the_log_of_an_embedded_engine_speaks_too(tmp_path: Path) -> None:
    folder = tmp_path / "opprof"
    folder.mkdir()
    found = report(simulated=True)
    (folder / "engine-config.json").write_bytes(msgspec.json.encode(found))
    log = tmp_path / "server.log"
    log.write_text("listening on 1\n")
    told = Facts(signal_wall_ns=1)
    assert health_gate(told, tmp_path, (None, None)).outcome == "pass"
    log.write_text(
        "(EngineCore pid=7) ERROR 11-30 03:22:17 [core.py:10] torch.OutOfMemoryError: CUDA out of "
        "memory.\n"
    )
    gate = health_gate(told, tmp_path, (None, None))
    assert gate.outcome == "fail" and "gpu_out_of_memory" in gate.reason
