"""A question that a Ray node answers without this package: by value, standard library only."""

from __future__ import annotations


def identity() -> dict[str, object]:
    """Return who the node is: its package (or why there is none), interpreter, boot and clocks.

    ``wall_ns`` is the node's CLOCK_REALTIME. CLOCK_MONOTONIC is not told: its origin is the boot,
    so that the numbers of two hosts have nothing to do with each other.
    """
    import os
    import pathlib
    import sys
    import time

    found: dict[str, object] = {
        "wall_ns": time.time_ns(),
        "python": sys.executable,
        "uid": os.geteuid(),
        "boot_id": pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "hostname": os.uname().nodename,
        "version": "",
        "code_sha256": "",
        "missing": "",
    }
    try:
        from opprof import __version__
        from opprof.code_hash import code_sha256
    except ImportError as error:
        found["missing"] = f"{type(error).__name__}: {error}"
        return found
    # Hashed from the files as they are now, not as they were when a process first looked.
    found["version"], found["code_sha256"] = __version__, code_sha256.__wrapped__()
    return found
