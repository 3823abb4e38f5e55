"""OpProf: pre-registered profiling of LLM serving."""

from opprof._version import __version__

__all__ = ["__version__"]
