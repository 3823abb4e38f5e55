"""vLLM's command line, as far as the embedded engine models it."""

from __future__ import annotations

import pytest

from opprof.engines.sim.config import SimConfig
from opprof.engines.sim.flags import ModelledFlags, read_flags
from opprof.engines.sim.graphs import Dispatch, Dispatcher
from opprof.errors import InputError
from opprof.protocol import load_protocol


def test_what_the_engine_models_is_kept() -> None:
    words = ["vllm", "serve", "m", "--enforce-eager", "--max-model-len", "1024"]
    found = read_flags([*words, "--no-async-scheduling", "--num-gpu-blocks-override=300"])
    assert found == ModelledFlags(True, False, 1024, 300)
    assert read_flags(["serve-sim", "m", *found.words]) == found
    assert read_flags(["vllm", "serve", "m"]) == ModelledFlags()
    assert read_flags([]).words == []


def test_the_last_of_two_counts() -> None:
    words = ["--max-model-len", "10", "--max_model_len=20", "--enforce-eager", "--no-enforce-eager"]
    assert read_flags(words) == ModelledFlags(max_model_len=20)


def test_what_it_does_not_model_is_named_once_and_nothing_else() -> None:
    line = "vllm serve ${MODEL} --dtype bfloat16 --gpu-memory-utilization 0.5 -tp 2"
    line += " --enable-chunked-prefill --kv-cache-dtype fp8 --gpu_memory_utilization=0.6"
    line += " --load-format dummy --max-model-len ${LENGTH} --seed -1"
    words = [*line.split(), "--compilation-config", '{"cudagraph_mode":"NONE"}']
    found = read_flags(words)
    assert found.not_modelled == (
        "--gpu-memory-utilization",
        "--kv-cache-dtype",
        "--max-model-len",
        "--compilation-config",
    )
    assert found.max_model_len is None
    assert read_flags(["--dtype", "float16"]).not_modelled == ("--dtype",)


@pytest.mark.parametrize("value", ["0", "-5", "many", "1.5", "", "1k"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="--max-model-len"):
        read_flags(["--max-model-len", value])


def test_the_packaged_protocol_is_modelled_whole() -> None:
    protocol = load_protocol("phase3")
    assert protocol is not None
    for row in protocol.file.configs:
        words = [*protocol.file.server.command.split(), *row.flags]
        assert read_flags(words) == ModelledFlags()


def test_an_eager_engine_captures_nothing_and_hits_nothing() -> None:
    config = SimConfig("m", enforce_eager=True)
    assert config.describe().cudagraph_mode == "NONE"
    assert config.describe().cudagraph_capture_sizes == []
    dispatcher = Dispatcher(config.sizes, config.max_num_seqs)
    assert dispatcher(1, uniform_decode=True) == Dispatch("NONE", 0)
    assert SimConfig("m").describe().cudagraph_mode == "FULL_AND_PIECEWISE"
