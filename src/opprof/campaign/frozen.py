"""What a campaign reads from its protocol and an analysis does without.

These keys are optional in the file, since a protocol may only ever be analysed by; a campaign has
no value of its own for any of them and refuses to begin without.
"""

from __future__ import annotations

from dataclasses import dataclass

from opprof.errors import InputError
from opprof.protocol.model import ProtocolFile, Reruns


@dataclass(frozen=True, slots=True)
class Frozen:
    """The keys, each with its value."""

    shutdown_timeout_s: float
    """The server's ``--shutdown-timeout`` (A-P3-5: positive, SIGTERM drains)."""
    idle_gpu_bytes_max: int
    """What a driver without any process may hold on a GPU that counts as idle."""
    reruns: Reruns
    """Which exact reruns are allowed."""


def frozen_of(protocol: ProtocolFile) -> Frozen:
    """Return what a campaign takes from its protocol.

    Raises:
        InputError: names the first key that the protocol leaves out.
    """
    found = {
        "server.shutdown_timeout_s": (timeout_s := protocol.server.shutdown_timeout_s),
        "placement.idle_gpu_bytes_max": (idle_bytes := protocol.placement.idle_gpu_bytes_max),
        "[reruns]": (reruns := protocol.reruns),
    }
    if timeout_s is None or idle_bytes is None or reruns is None:
        key = next(key for key, value in found.items() if value is None)
        reason = f"{protocol.id} leaves out {key}, which a campaign takes from its protocol"
        raise InputError(reason)
    return Frozen(timeout_s, idle_bytes, reruns)


def applies(protocol: ProtocolFile, condition: int) -> bool:
    """Whether the protocol lists a hard-stop condition; one that it does not list stops nothing."""
    return any(row.number == condition for row in protocol.stops)
