"""Scope chains and layers of launches."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from kineto_builder import Trace, call, kernel, python_function, span, us

from opprof.trace.columns import Spans
from opprof.trace.model import WindowTrace
from opprof.trace.scopes import MAX_DEPTH, call_scopes

Read = Callable[..., WindowTrace]


def test_chain_is_outermost_first_and_without_steps_or_python(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    trace.add(
        python_function("qwen3_moe.py(1): forward", us(200), "900.000"),
        span("user_annotation", "nn.Module: FusedMoE", us(200), "900.000"),
        span("cpu_op", "vllm::moe_forward", us(210), "500.000", args={"stream": 7}),
        span("cpu_op", "aten::mm", us(220), "100.000"),
        span("cpu_op", "aten::view", us(230), "10.000"),
        span("cpu_op", "elsewhere", us(200), "900.000") | {"tid": 99},
        call("cudaLaunchKernel", us(300), 50),
        kernel("gemm", us(5500), "1.000", 50),
    )
    window = read(trace.write(tmp_path / "t.gz"))
    chains = {window.scopes[scope] for _, scope in window.steps[0].kernels}
    assert chains == {(), ("nn.Module: FusedMoE", "vllm::moe_forward", "aten::mm")}
    assert window.kernel.events == 9


def test_layers_are_numbered_within_their_step(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    for step in (0, 1):
        for layer in range(3):
            at = step * 10_000 + 1000 + layer * 100
            number = 100 * (step + 1) + layer
            trace.add(span("cpu_op", "vllm::moe_forward", us(at), "50.000"))
            trace.add(span("cpu_op", "vllm::moe_forward", us(at + 1), "40.000"))
            trace.add(call("cudaLaunchKernel", us(at + 10), number))
            trace.add(kernel("gemm", us(at + 6000), f"{layer + 1}.000", number))
    window = read(trace.write(tmp_path / "t.gz"))
    for step in window.steps[:2]:
        assert sorted((key[2], ns) for key, ns in step.layers.items()) == [
            (0, 1000),
            (1, 2000),
            (2, 3000),
        ]
    assert not window.steps[2].layers


def test_file_order_does_not_matter(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    for index in range(40):
        at = 1000 + index * 100
        trace.add(
            span("cpu_op", f"outer{index % 5}", us(at), "80.000"),
            span("cpu_op", "inner", us(at), "40.000"),
            call("cudaLaunchKernel", us(at + 10), 50 + index),
            kernel("gemm", us(at + 5500), "1.000", 50 + index),
        )
    ordered = read(trace.write(tmp_path / "t.gz"))
    random.Random(7).shuffle(trace.events)
    shuffled = read(trace.write(tmp_path / "s.gz"))

    def named(window: WindowTrace) -> list[dict[object, object]]:
        return [
            {(window.names[n], window.scopes[s]): t for (n, s), t in step.kernels.items()}
            for step in window.steps
        ]

    assert named(ordered) == named(shuffled)
    assert shuffled.busy_ns == ordered.busy_ns


def _nested(draw: st.DrawFn, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Spans that nest as calls on one thread do."""
    spans = []
    at = low
    while depth and at < high and draw(st.booleans()):
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start, high))
        spans.append((start, end))
        spans += _nested(draw, start, end, depth - 1)
        at = end
    return spans


@given(st.data())
def test_sweep_equals_the_definition(data: st.DataObject) -> None:
    spans = _nested(data.draw, 0, 60, 4)
    times = data.draw(st.lists(st.integers(-2, 62), max_size=12))
    ops, calls = Spans(), Spans()
    for number, (start, end) in enumerate(spans):
        ops.start_ns.append(start)
        ops.duration_ns.extend([end - start])
        ops.keys_of.extend([ops.keys[f"op{number}", 1]])
    for time in times:
        calls.start_ns.append(time)
        calls.duration_ns.extend([1])
        calls.keys_of.extend([calls.keys["cudaLaunchKernel", 1]])
    result = call_scopes(ops, calls, layer_scope=re.compile("op"), step_of=lambda at: 0)
    names = result.chains.names()
    for index, time in enumerate(times):
        enclosing = [
            (start, -end, f"op{n}") for n, (start, end) in enumerate(spans) if start <= time < end
        ]
        assert sorted(names[result.chain[index]]) == sorted(name for _, _, name in enclosing)
        starts = [start for start, _, _ in enclosing]
        order = [spans[int(name[2:])][0] for name in names[result.chain[index]]]
        assert order == sorted(starts)


def test_thousands_of_nested_ops_stay_bounded(tmp_path: Path, read: Read) -> None:
    trace = Trace.window()
    for index in range(3000):
        trace.add(span("cpu_op", f"op{index}", us(1000 + index * 0.1), "5000.000"))
    trace.add(call("cudaLaunchKernel", us(2000), 50), kernel("gemm", us(7500), "1.000", 50))
    window = read(trace.write(tmp_path / "t.gz"))
    assert window.kernel.events == 9
    assert max(map(len, window.scopes)) == MAX_DEPTH
