"""One pool of workers: order, failures, a killed worker. Signals: tests/analysis/test_many.py."""

from __future__ import annotations

import os
import signal

import pytest

from opprof.errors import EnvironmentFailure, InputError
from opprof.workers import run_many


def double(value: int) -> int:
    if value < 0:
        raise InputError(f"{value} is negative", line=value)
    if value == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * value


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_come_in_order_and_are_heard_in_order(jobs: int) -> None:
    heard: list[int] = []
    assert run_many(double, [3, 1, 2], jobs=jobs, done=heard.append) == [6, 2, 4]
    assert heard == [6, 2, 4]
    assert run_many(double, [], jobs=jobs) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_failure_in_order_is_raised_whole(jobs: int) -> None:
    with pytest.raises(InputError, match=r"^line -1: -1 is negative$"):
        run_many(double, [1, -1, -2], jobs=jobs)


def test_a_killed_worker_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="a worker process was killed"):
        run_many(double, [1, 99, 2], jobs=2)
