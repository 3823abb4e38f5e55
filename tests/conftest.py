"""Settings for every test: no example may fail for being slow on a shared machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("opprof", deadline=None)
settings.load_profile("opprof")
