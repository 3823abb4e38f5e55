"""A small finished campaign: one real (trimmed) H200 run, analysed, recorded, decided upon."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from opprof._version import __version__
from opprof.analysis.load import compare_found, load_runs
from opprof.analysis.run import analyze_run
from opprof.analysis.write import encode, write_analysis
from opprof.artifacts.campaign import Attempt, Campaign, CheckName, RunRecord, Transition
from opprof.artifacts.common import Gate, SanityBlock
from opprof.artifacts.plan import ColocationGate
from opprof.artifacts.run import Result
from opprof.campaign.ledger import opening
from opprof.code_hash import client_sha256, code_sha256
from opprof.files import sha256_file
from opprof.integrity import closing, provenance
from opprof.protocol import load_protocol
from opprof.protocol.freeze import Approvals, freeze_protocol
from opprof.protocol.load import packaged_path

RUN = "P01-C00-saturation"
EXAMPLE = Path(__file__).parents[2] / "examples" / "h200-runs" / RUN
MANIFEST = "ab" * 32


def build(folder: Path) -> Path:
    """Write the campaign; everything in it verifies."""
    protocol = folder / "protocol.toml"
    folder.mkdir(parents=True)
    draft = load_protocol(packaged_path())
    assert draft is not None
    approvals = Approvals(numbers={}, rest="2026-07-12", by="reviewer")
    protocol.write_bytes(freeze_protocol(draft, approvals, date="2026-07-12"))
    recorded = provenance.record_campaign(
        folder,
        campaign_id="c1",
        protocol=protocol,
        mappings=["v1", "v2"],
        launches={"C00": {"command": ["vllm", "serve"]}},
        wall_ns=1,
    )
    digest = recorded.protocols[0]
    (folder / "protocols").mkdir()
    shutil.copy(protocol, folder / "protocols" / f"00-{digest[:12]}.toml")
    write(folder / "campaign.json", campaign_of(digest))
    prior = opening(draft.file.budget, wall_ns=1, simulated=True)
    (folder / "ledger.jsonl").write_bytes(msgspec.json.encode(prior) + b"\n")
    run = folder / "runs" / RUN
    _make_run(run, protocol)
    provenance.record_run(folder, RUN, attempt=1, protocol_sha256=digest, wall_ns=2)
    write(folder / "state" / f"{RUN}.json", state_of(digest, recorded.launches["C00"]))
    found = load_runs([run / "analysis"], load_protocol(protocol))
    comparison = compare_found(found, load_protocol(protocol))
    (folder / "comparison.json").write_bytes(encode(comparison))
    closing.close(folder, wall_ns=3)
    return folder


def _make_run(run: Path, protocol: Path) -> None:
    shutil.copytree(EXAMPLE, run)
    traces = [
        {"name": path.name, "original_name": f"dp0.{n}.json.gz", "sha256": sha256_file(path)}
        for n, path in enumerate(sorted((run / "traces").iterdir()))
    ]
    result = Result(
        schema=1,
        accepted=True,
        reasons=[],
        completed_rps=1.0,
        offered_rps=1.0,
        manifest_sha256=MANIFEST,
        pattern="P01",
        config="C00",
        load_point="saturation",
        role="primary",
        drain_quarantined=False,
        metrics={"traces": traces, "code_sha256": code_sha256()},
    )
    write(run / "client" / "result.json", result)
    (run / "commands.log").write_text("opprof run\n")
    write_analysis(analyze_run(run, load_protocol(protocol)), run / "analysis")


def campaign_of(protocol_sha256: str) -> Campaign:
    return Campaign(
        schema=1,
        id="c1",
        protocol_id="phase3",
        protocol_sha256=protocol_sha256,
        engine="sim",
        variables={},
        manifests={"P01": MANIFEST},
        time_scale=1.0,
        seed=1,
        hosts=["h"],
        executor="local",
        options={},
        code_version=__version__,
        code_sha256=code_sha256(),
        created_wall_ns=1,
    )


def state_of(protocol_sha256: str, launch: str) -> RunRecord:
    attempt = Attempt(
        number=1,
        folder=f"runs/{RUN}",
        phase="complete",
        transitions=[Transition("complete", 3)],
        slot=None,
        processes=[],
        source_hashes={
            "protocol": protocol_sha256,
            "code": code_sha256(),
            "client": client_sha256(),
            "launch": launch,
            "manifest": MANIFEST,
        },
        checks={name: Gate(name, "pass", "fine") for name in get_args(CheckName)},
    )
    return RunRecord(
        schema=1,
        run=RUN,
        pattern="P01",
        config="C00",
        load_point="saturation",
        role="primary",
        order=0,
        needs=[],
        state="complete",
        attempts=[attempt],
    )


def gate_of(folder: Path, inputs: dict[str, str]) -> ColocationGate:
    """Return a gate of the host ``vm`` that authorises two slots."""
    recorded = provenance.read_campaign(folder)
    return ColocationGate(
        schema=1,
        outcome="eight",
        reason="",
        authorised_width=2,
        protocol_id="phase3",
        protocol_sha256=recorded.protocols[0],
        host="vm",
        gpus=[0, 1],
        gpu_uuids=["", ""],
        engine="sim",
        engine_version=__version__,
        time_scale=1.0,
        target="P01/C00",
        solo_saturation_rps=1.0,
        solo_throughput_rps=1.0,
        top_families=[],
        solo_gates=[],
        regimes=[],
        inputs=inputs,
        mapping_version="v2",
        mapping_sha256=recorded.mappings["v2"],
        code_version=__version__,
        code_sha256=recorded.code_sha256,
        created_wall_ns=1,
        simulated=True,
        sanity=SanityBlock([], []),
    )


def write(path: Path, value: object) -> None:
    """Write a Struct as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(value))  # type: ignore[arg-type]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place."""
    value = msgspec.json.decode(path.read_bytes())
    change(value)
    path.chmod(0o644)
    path.write_bytes(msgspec.json.encode(value))
