"""A running Ray cluster as a set of engine hosts: connect, find the nodes, refuse what differs.

The cluster is somebody else's: it is joined, never started or stopped here. The controller's host
must be a node of it (it may offer no slot). A node offers its GPUs, or, for the embedded engine
where there are none, as many slots as its custom resource ``opprof_gpu`` says.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec

from opprof.code_hash import code_sha256
from opprof.errors import EnvironmentFailure, InputError

EXTRA = "Ray is not installed: pip install 'opprof[ray]'"
SLOT_RESOURCE = "opprof_gpu"
_GPU_RESOURCE = "GPU"
_CLOCK_LOOKS = 5
_PORT = re.compile(r"[0-9]{1,5}")
_HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_SETTINGS
"""What a gRPC client says first; a gRPC server answers with its own SETTINGS (RFC 9113, 3.4)."""


@dataclass(frozen=True)
class RayLimits:
    """How long the executor waits for Ray, in seconds; no measured time depends on them."""

    connect_s: float = 10.0
    """Until the head's port answers."""
    place_s: float = 120.0
    """Until a node has started a process of ours: its GPUs may still be another job's."""
    answer_s: float = 60.0
    """For a short answer of a node."""
    loss_s: float = 60.0
    """After a process of ours on a node was lost, until it is known whether the node was."""
    ship_s: float = 600.0
    """For one call that reads, hashes or writes files on a node."""
    look_s: float = 0.2
    """Between two looks at the same thing."""


class NodeSilent(EnvironmentFailure):
    """A process of ours on a node, or the node itself, is gone or does not answer."""


class Identity(msgspec.Struct, frozen=True):
    """Answer of :func:`opprof.campaign.executors.ray_probe.identity`."""

    wall_ns: int
    python: str
    uid: int
    boot_id: str
    hostname: str
    version: str
    code_sha256: str
    missing: str


@dataclass(frozen=True)
class Node:
    """A node that offers slots."""

    name: str
    """Ray's node name (``ray start --node-name``); ``Slot.host`` of every run on it."""
    node_id: str
    slots: int
    resource: str
    identity: Identity
    clock_offset_ns: int
    """Its CLOCK_REALTIME minus the controller's, to within ``clock_error_ns``."""
    clock_error_ns: int


def import_ray() -> ModuleType:
    """Return the module ``ray``.

    Raises:
        EnvironmentFailure: the extra is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise EnvironmentFailure(EXTRA) from error


def check_address(address: str) -> tuple[str, int]:
    """Return host and port of a head's address.

    Raises:
        InputError: it is not ``HOST:PORT``.
    """
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16 or "/" in host:
        raise InputError(
            f"Ray's address {address!r} is not HOST:PORT of a head (--ray-address or RAY_ADDRESS)"
        )
    return host, int(port)


def knock(address: str, limits: RayLimits) -> None:
    """Check that Ray is installed and that somebody answers at the head's address.

    Raises:
        InputError: the address is none.
        EnvironmentFailure: Ray is missing, nobody answers, or somebody else does: Ray itself would
            try for more than ten minutes to be understood there.
    """
    import_ray()
    where = check_address(address)
    try:
        with socket.create_connection(where, limits.connect_s) as peer:
            peer.sendall(_HTTP2_HELLO)
            frame = peer.recv(len(_HTTP2_SETTINGS))
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentFailure(
            f"no Ray cluster answers at {address}: {reason} (--ray-address names another one)"
        ) from error
    if frame[3:4] != _HTTP2_SETTINGS[3:4]:
        raise EnvironmentFailure(f"what answers at {address} is no head of a Ray cluster")


async def connect(address: str, campaign: str, limits: RayLimits) -> ModuleType:
    """Join the cluster and return Ray.

    Raises:
        InputError: the address is none.
        EnvironmentFailure: Ray is missing, nobody answers there, or versions differ.
    """
    ray = import_ray()
    await asyncio.to_thread(knock, address, limits)

    def join() -> None:
        # In a thread, where Ray leaves SIGTERM to the controller (and would warn that it does).
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray.init(
            address=address,
            namespace=f"opprof-{campaign}",
            configure_logging=False,
            log_to_driver=False,
        )

    try:
        await asyncio.to_thread(join)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise EnvironmentFailure(f"cannot join the Ray cluster at {address}: {first}") from error
    return ray


def alive(ray: Any) -> dict[str, str]:
    """Return node id to node name of the nodes that Ray believes to live."""
    return {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Alive"]}


async def find_nodes(
    ray: Any, wanted: Sequence[str], limits: RayLimits, say: Callable[[str], None]
) -> list[Node]:
    """Return the nodes with slots, by name, each with the controller's own code.

    Args:
        ray: the module, connected.
        wanted: node names of the campaign; empty for every node with slots.
        limits: how long to wait.
        say: takes a line a node.

    Raises:
        EnvironmentFailure: no node has slots, a wanted one is not there, two share a name, or a
            node has other code or none; the message names both hashes.
    """
    found: dict[str, tuple[str, int, str]] = {}
    for node in ray.nodes():
        slots, resource = _slots(node["Resources"])
        name = node["NodeName"]
        if not node["Alive"] or not slots or (wanted and name not in wanted):
            continue
        if name in found:
            raise EnvironmentFailure(
                f"two Ray nodes are called {name!r}: start them with --node-name"
            )
        found[name] = (node["NodeID"], slots, resource)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise EnvironmentFailure(f"the Ray cluster has no living node {missing[0]!r} with slots")
    if not found:
        raise EnvironmentFailure(
            f"no node of the Ray cluster offers GPUs or the resource {SLOT_RESOURCE!r}"
        )
    names = sorted(found)
    nodes = await asyncio.gather(*(_look(ray, name, *found[name], limits) for name in names))
    for node in nodes:
        say(
            f"ray node {node.name}: {node.slots} slots, clock {node.clock_offset_ns / 1e6:+.3f} ms"
            f" (within {node.clock_error_ns / 1e6:.3f} ms) of the controller's"
        )
    return nodes


def _slots(resources: dict[str, float]) -> tuple[int, str]:
    gpus = int(resources.get(_GPU_RESOURCE, 0))
    return (gpus, _GPU_RESOURCE) if gpus else (int(resources.get(SLOT_RESOURCE, 0)), SLOT_RESOURCE)


async def _look(
    ray: Any, name: str, node_id: str, slots: int, resource: str, limits: RayLimits
) -> Node:
    from opprof.campaign.executors import ray_probe

    # By value: the node may have no such module, or another one.
    ray.cloudpickle.register_pickle_by_value(ray_probe)
    asked = ray.remote(num_cpus=0, max_retries=0)(ray_probe.identity).options(
        scheduling_strategy=on_node(node_id)
    )
    best: tuple[int, int, Identity] | None = None
    # The first call starts a process; the quickest of the others tells most about the clock.
    for number in range(_CLOCK_LOOKS):
        before = time.time_ns()
        data = await answer(asked.remote(), f"Ray node {name}", limits.place_s)
        error = (time.time_ns() - before + 1) // 2
        found = msgspec.convert(data, Identity)
        if number == 0:
            check_code(name, found, code_sha256())
        if best is None or error < best[0]:
            best = (error, found.wall_ns - before - error, found)
    assert best is not None
    return Node(name, node_id, slots, resource, best[2], best[1], best[0])


def check_code(name: str, identity: Identity, own: str) -> None:
    """Refuse a node that would measure with other code than the controller judges with.

    Raises:
        EnvironmentFailure: names both hashes.
    """
    if identity.missing:
        raise EnvironmentFailure(
            f"Ray node {name} has no opprof ({identity.missing}; {identity.python}); "
            f"the controller's code is {own}"
        )
    if identity.code_sha256 != own:
        raise EnvironmentFailure(
            f"Ray node {name} has other code: {identity.code_sha256} (version {identity.version}); "
            f"the controller's is {own}"
        )


def on_node(node_id: str) -> object:
    """Return the scheduling strategy: this node or none."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


async def answer(ref: Awaitable[Any], what: str, seconds: float | None) -> Any:
    """Wait for a Ray call.

    Raises:
        NodeSilent: the call's process or node is gone, or it takes too long.
        OpprofError: what the call itself raised.
    """
    ray = import_ray()
    try:
        async with asyncio.timeout(seconds):
            return await ref
    except TimeoutError as error:
        raise NodeSilent(f"{what}: no answer in {seconds:g} s") from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayError as error:
        raise NodeSilent(f"{what}: {type(error).__name__}") from error
