"""Versions of everything a run depends on, for this interpreter or for the engine's.

Source: protocol, "Artifact, privacy, and reproducibility contract" ("Python/torch/CUDA/vLLM/msgspec
versions, driver"). Nothing heavy is imported: importing torch takes seconds and a GPU context.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from opprof._version import __version__
from opprof.artifacts.environment import Versions
from opprof.errors import EnvironmentFailure
from opprof.host import version_probe

_LOOK_S = 0.02
_ANSWER_BYTES = 1 << 20
_MISSING = {
    "msgspec": "not installed for this Python",
    "vllm": "not installed for this Python",
    "torch": "not installed for this Python",
    "cuda_runtime": "torch is absent or built without CUDA",
    "nccl": "not installed as a package of its own",
    "driver": "no driver was asked",
    "cuda_driver": "no driver was asked",
}


def versions(
    driver: tuple[str | None, str | None],
    *,
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> tuple[Versions, dict[str, str]]:
    """Return the versions, and the reason for each that is null.

    Args:
        driver: ``Host.driver()``: the driver's version and the newest CUDA that it supports.
        python: Interpreter to ask; this one by default. The engine may have its own.
        environment: Variables for that interpreter (its PYTHONPATH …); inherited by default.
        timeout_s: How long that interpreter may take.

    Raises:
        EnvironmentFailure: the other interpreter cannot be asked.
    """
    found = version_probe.probe() if python is None else _ask(python, environment, timeout_s)
    result = Versions(
        opprof=__version__,
        python=found["python"] or "unknown",
        msgspec=found["msgspec"],
        vllm=found["vllm"],
        torch=found["torch"],
        cuda_runtime=found["cuda_runtime"],
        cuda_driver=driver[1],
        driver=driver[0],
        nccl=found["nccl"],
        kernel=found["kernel"] or "unknown",
    )
    reasons = {name: reason for name, reason in _MISSING.items() if getattr(result, name) is None}
    return result, reasons


def _ask(
    python: str, environment: Mapping[str, str] | None, timeout_s: float
) -> dict[str, str | None]:
    source = Path(version_probe.__file__).read_text(encoding="utf-8")
    # A file, since what it leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as answer:
        try:
            process = subprocess.Popen(
                [python, "-c", source],
                env=None if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            reason = f"cannot start to ask its versions: {error.strerror or error}"
            raise EnvironmentFailure(reason, path=python) from error
        ended = _ends(process.pid, timeout_s)
        # Not reaped yet: the group's number is still its own, and nothing of it stays.
        os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        answer.seek(0)
        said = answer.read(_ANSWER_BYTES)
    if not ended:
        reason = f"did not tell its versions within {timeout_s:g} s"
        raise EnvironmentFailure(reason, path=python)
    try:
        # The last line: a site's own start-up hooks may print before it.
        last = said.splitlines()[-1:] or [b""]
        found = msgspec.json.decode(last[0], type=dict[str, str | None])
    except msgspec.DecodeError as error:
        reason = f"did not tell its versions (exit status {status})"
        raise EnvironmentFailure(reason, path=python) from error
    return {name: found.get(name) for name in (*_MISSING, "python", "kernel")}


def _ends(pid: int, timeout_s: float) -> bool:
    """Tell whether a child ends in time; it is not reaped."""
    give_up = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > give_up:
            return False
        time.sleep(_LOOK_S)
    return True
