"""What a campaign reads from its protocol and an analysis does without.

These tables are optional in the file, since a protocol may only ever be analysed by; a campaign
has no value of its own for any of them and refuses to begin without.
"""

from __future__ import annotations

from opprof.errors import InputError
from opprof.protocol.model import ProtocolFile, Reruns


def shutdown_timeout_s(protocol: ProtocolFile) -> float:
    """Return the server's ``--shutdown-timeout`` in seconds (A-P3-5: positive, SIGTERM drains).

    Raises:
        InputError: the protocol leaves it out.
    """
    value = protocol.server.shutdown_timeout_s
    if value is None:
        raise _left_out(protocol, "server.shutdown_timeout_s")
    return value


def idle_gpu_bytes_max(protocol: ProtocolFile) -> int:
    """Return what a driver without any process may hold on a GPU that counts as idle, in bytes.

    Raises:
        InputError: the protocol leaves it out.
    """
    value = protocol.placement.idle_gpu_bytes_max
    if value is None:
        raise _left_out(protocol, "placement.idle_gpu_bytes_max")
    return value


def reruns_of(protocol: ProtocolFile) -> Reruns:
    """Return which exact reruns are allowed.

    Raises:
        InputError: the protocol leaves it out.
    """
    if protocol.reruns is None:
        raise _left_out(protocol, "[reruns]")
    return protocol.reruns


def applies(protocol: ProtocolFile, condition: int) -> bool:
    """Whether the protocol lists a hard-stop condition; one that it does not list stops nothing."""
    return any(row.number == condition for row in protocol.stops)


def require(protocol: ProtocolFile) -> None:
    """Refuse a protocol that leaves out what a campaign needs.

    Raises:
        InputError: names the first key that is missing.
    """
    shutdown_timeout_s(protocol)
    idle_gpu_bytes_max(protocol)
    reruns_of(protocol)


def _left_out(protocol: ProtocolFile, key: str) -> InputError:
    return InputError(f"{protocol.id} leaves out {key}, which a campaign takes from its protocol")
