"""OpProf: pre-registered profiling of LLM serving.

``opprof.load(run)`` analyses a run directory; see :mod:`opprof.api`. Nothing heavy is imported
here, since the vLLM plugin lives in this package too.
"""

from typing import TYPE_CHECKING, Any

from opprof._version import __version__

if TYPE_CHECKING:
    from opprof.api import Run, load

__all__ = ["Run", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "load"):
        from opprof import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
