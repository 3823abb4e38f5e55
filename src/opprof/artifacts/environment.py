"""``environment.json`` of a run: machine, GPUs, clocks, other processes, versions, hashes.

Sources: protocol, "Compile warm-up and execution order" (last paragraph), A-P3-1, "Artifact,
privacy, and reproducibility contract"; contract, section 1.

A field that could not be read is null, and its reason stands under ``not_available`` by the field's
name; nothing is ever guessed. Names of users are personal data and appear nowhere: a process says
only whether it is the campaign's, the same user's, or another user's.

Format history
    schema 1    first. Added since: a snapshot's ``elsewhere``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from opprof.artifacts.common import Sha256
from opprof.artifacts.provenance import FileHash

SCHEMA = 1

Count = Annotated[int, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0)]
WallNs = Annotated[int, Meta(ge=0)]
MonoNs = Annotated[int, Meta(ge=0)]
Mhz = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0)]

HostKind = Literal["nvml", "cpu", "fake"]
"""``nvml``: real GPUs. ``cpu``: a machine looked at without NVML, no GPU is known. ``fake``: from a
file, everything about GPUs is invented and labelled so."""

Owner = Literal["campaign", "same_user", "other_user", "unknown"]
"""``campaign``: born of it (:mod:`opprof.host.birthmark`) or marked by ``OPPROF_CAMPAIGN``.
``unknown``: NVML names a process that this PID namespace does not show (a container), or that has
just ended."""


class GpuDevice(Struct, frozen=True, forbid_unknown_fields=True):
    """A physical GPU as the driver numbers it (PCI bus order); CUDA_VISIBLE_DEVICES is ignored."""

    index: Count
    uuid: str
    name: str
    memory_bytes: Bytes
    numa_node: Count | None
    """Node whose memory is local; null where the machine does not tell."""
    pci_bus_id: str = ""
    mig_enabled: bool = False
    """A partitioned GPU is not one GPU: it is refused as a slot."""


class NumaNode(Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node and its logical CPUs."""

    node: Count
    cpus: str
    """As ``taskset -c`` writes a mask: ``0-19,40-59``."""


class Topology(Struct, frozen=True, forbid_unknown_fields=True):
    """What does not change while the machine is up."""

    host: str
    kind: HostKind
    boot_id: str
    """Kernel's id of this boot; process ids mean nothing across boots."""
    gpus: list[GpuDevice]
    numa_nodes: list[NumaNode]
    cpus: str
    """CPUs that this process may use, which may be fewer than the nodes hold."""
    not_available: dict[str, str] = {}


class GpuState(Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU at one moment."""

    index: Count
    uuid: str
    memory_used_bytes: Bytes | None = None
    """Allocated by processes; without the driver's own reserve where NVML tells it apart."""
    memory_reserved_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    sm_clock_mhz: Mhz | None = None
    mem_clock_mhz: Mhz | None = None
    sm_clock_max_mhz: Mhz | None = None
    mem_clock_max_mhz: Mhz | None = None
    sm_clock_application_mhz: Mhz | None = None
    pstate: Annotated[int, Meta(ge=0, le=15)] | None = None
    power_w: Share | None = None
    power_limit_w: Share | None = None
    temperature_c: int | None = None
    utilization_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    throttle_reasons: list[str] | None = None
    """Clock event reasons by name, sorted; empty when none is active."""
    ecc_enabled: bool | None = None
    ecc_uncorrected: Count | None = None
    """Uncorrected errors since the driver was loaded."""
    persistence: bool | None = None
    compute_mode: str | None = None
    """``default``, ``exclusive_process`` or ``prohibited``."""
    not_available: dict[str, str] = {}


class GpuProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """A process that holds a context on a GPU."""

    gpu: Count
    pid: Annotated[int, Meta(ge=1)]
    owner: Owner
    kind: Literal["compute", "graphics"]
    name: str | None
    """The kernel's short command name without path or arguments; null where it cannot be read."""
    memory_bytes: Bytes | None
    """null where the driver does not tell (as in some containers)."""


class HostState(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine at one moment."""

    load_1m: Share
    load_5m: Share
    load_15m: Share
    cpus: Annotated[int, Meta(ge=1)]
    """Logical CPUs of the machine."""
    memory_total_bytes: Bytes
    memory_available_bytes: Bytes
    swap_used_bytes: Bytes | None = None
    cpu_governors: dict[str, Count] | None = None
    """Governor to number of CPUs under it."""
    oom_kills: Count | None = None
    """Processes that the kernel has killed for want of memory since boot."""
    not_available: dict[str, str] = {}


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that is recorded before and after a measured interval."""

    label: str
    wall_ns: WallNs
    mono_ns: MonoNs
    """When the snapshot began."""
    elapsed_ns: Count
    """How long it took; it is taken outside the measured interval."""
    host: HostState
    gpus: list[GpuState]
    """The selected GPUs, in the order asked for."""
    processes: list[GpuProcess]
    """On the selected GPUs, by GPU and pid."""
    not_available: dict[str, str] = {}
    elsewhere: list[GpuProcess] = []
    """Processes of others on the host's further GPUs, by GPU and pid."""


class Versions(Struct, frozen=True, forbid_unknown_fields=True):
    """What ran. null: not installed here; the reason stands in ``Environment.not_available``."""

    opprof: str
    python: str
    msgspec: str | None
    vllm: str | None
    torch: str | None
    cuda_runtime: str | None
    """That torch was built for."""
    cuda_driver: str | None
    """Newest CUDA that the driver supports."""
    driver: str | None
    nccl: str | None
    kernel: str


class ModelFingerprint(Struct, frozen=True, forbid_unknown_fields=True):
    """The model's files; hashed once a campaign and only again when size, time or inode change."""

    path: str
    files: list[FileHash]
    """Paths relative to the model folder, sorted."""
    sha256: Sha256
    """Over ``path size sha256`` lines of the files, sorted by path."""


class Environment(Struct, frozen=True, forbid_unknown_fields=True):
    """The artefact. Evidence beside the run; the analysis itself reads only ``signal_wall_ns``."""

    schema: Literal[1]
    run: str
    attempt: Annotated[int, Meta(ge=1)]
    topology: Topology
    gpus: list[Count]
    """Physical indices that the run was given."""
    gpu_uuids: list[str]
    cpus: str
    """CPU mask of server and client; empty where none was set."""
    versions: Versions
    hashes: dict[str, Sha256]
    """``protocol``, ``manifest``, ``client``, ``code``, ``plugin``, ``hooked``, ``commands``,
    ``launch``, ``mapping`` … by name."""
    hooked: dict[str, Sha256]
    """Hooked or relied-on definition of the engine to the SHA-256 of its source: these stand where
    the protocol names patch checksums."""
    expected_seconds: Share | None
    """How long the run was planned to take when it was launched."""
    before: Snapshot | None
    after: Snapshot | None
    samples: list[Snapshot] = []
    """Further looks during the run, oldest first."""
    model: ModelFingerprint | None = None
    engine_config_sha256: Sha256 | None = None
    """Of ``opprof/engine-config.json``."""
    effective_config: dict[str, Any] | None = None
    """What the engine said of itself, expected and seen side by side."""
    compile_cache_key: str | None = None
    moe_backend: str | None = None
    """Observed at run time (protocol, "Pinned context")."""
    attention_backend: str | None = None
    seeds: dict[str, Count] = {}
    signal_wall_ns: WallNs | None = None
    """When the server was told to end (A-P3-5)."""
    simulated: bool = False
    not_available: dict[str, str] = {}
