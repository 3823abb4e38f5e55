"""Calls of ``pynvml`` with their errors sorted: a field that is not told, or a driver that is gone.

The module is passed in, so that a test can put a stub in its place. NVML must be initialised in the
process that asks: a fork inherits nothing usable, so the process id is watched.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from opprof.errors import EnvironmentFailure

FATAL = {
    1: "uninitialised",
    9: "driver not loaded",
    12: "library not found",
    15: "GPU is lost",
    16: "GPU requires a reset",
    18: "driver and library versions differ",
    28: "GPU not found",
}
"""``NVML_ERROR_*`` after which nothing more can be learned from the GPU or the driver; every other
error speaks of the one call (not supported, no permission, no data …)."""


class NotTold(Exception):
    """One field that the driver does not tell; the text says why. Never leaves this package."""


def import_pynvml() -> ModuleType:
    """Return NVIDIA's ``pynvml``: the installed one, else the copy that vLLM brings along.

    Raises:
        EnvironmentFailure: there is neither.
    """
    try:
        import pynvml
    except ImportError as error:
        copy = vllm_copy()
        if copy is None:
            raise EnvironmentFailure(
                "nvidia-ml-py is not installed: pip install 'opprof[campaign]'"
            ) from error
        return copy
    module: ModuleType = pynvml
    return module


def vllm_copy() -> ModuleType | None:
    """Load ``vllm/third_party/pynvml.py`` by itself; importing vLLM would take seconds."""
    try:
        package = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    for folder in [] if package is None else package.submodule_search_locations or []:
        path = Path(folder) / "third_party" / "pynvml.py"
        spec = importlib.util.spec_from_file_location("opprof_vllm_pynvml", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            # It makes its error classes in ``sys.modules[__name__]``.
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
    return None


class Nvml:
    """The library, initialised on first use in each process.

    Args:
        library: ``pynvml`` or what behaves like it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._process: int | None = None
        self._lock = threading.Lock()
        self._error: type[Exception] = library.NVMLError

    def constant(self, name: str) -> int:
        """Return one of the library's constants.

        Raises:
            NotTold: this release of the library has none of that name.
        """
        value = getattr(self._library, name, None)
        if value is None:
            raise NotTold(f"this pynvml has no {name}")
        return int(value)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the library.

        Raises:
            NotTold: the field is not supported, permitted or known here.
            EnvironmentFailure: driver or GPU cannot be asked at all.
        """
        self._initialise()
        function = getattr(self._library, name, None)
        if function is None:
            raise NotTold(f"this pynvml has no {name}")
        return self._guard(name, function, *arguments)

    def optional(self, field: str, missing: dict[str, str], read: Callable[[], Any]) -> Any:
        """Return ``read()``, or null with the reason in ``missing`` under ``field``.

        Raises:
            EnvironmentFailure: driver or GPU cannot be asked at all.
        """
        try:
            return read()
        except NotTold as reason:
            missing[field] = str(reason)
            return None

    def close(self) -> None:
        """Release the library in this process."""
        with self._lock:
            if self._process == os.getpid():
                self._process = None
                self._guard("nvmlShutdown", self._library.nvmlShutdown)

    def _initialise(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                return
            try:
                self._guard("nvmlInit", self._library.nvmlInit)
            except NotTold as reason:
                raise EnvironmentFailure(f"cannot start NVML: {reason}") from reason
            self._process = os.getpid()

    def _guard(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._error as error:
            value = getattr(error, "value", None)
            text = str(error).lower() or f"error {value}"
            if value in FATAL:
                if value == 1:
                    # Somebody else in this process shut it down: the next call starts it again.
                    self._process = None
                raise EnvironmentFailure(f"NVML ({name}): {text}") from error
            raise NotTold(text) from error
