"""Several cells a host over Ray: each node has its own co-location check and gate (A-P3-1).

As in ``test_colocation_sim`` the limits stand open: what the embedded engine measures on a shared
machine says nothing about co-location.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import campaign_small
import pytest

pytest.importorskip("ray", reason="needs the extra: `make ray`")

from ray_nodes import LocalCluster, local_cluster, processes_naming
from test_colocation_sim import TABLE
from test_ray_campaign import Site, on_ray

from opprof.artifacts.campaign import RunRecord
from opprof.campaign.colocation_read import read_gates
from opprof.campaign.ledger import ledger_problems, open_reservations
from opprof.campaign.ledger_file import read_ledger
from opprof.campaign.store import Store, is_locked
from opprof.files import sha256_file
from opprof.integrity.ledger import NAME

pytestmark = pytest.mark.ray
REQUESTS = 16384


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with local_cluster() as made:
        made.add("alpha", slots=2)
        made.add("beta", slots=2)
        yield made
    assert not processes_naming(str(made.folder))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = campaign_small.SOURCE.read_text()
    source = tmp_path / "source.toml"
    source.write_text(text.replace("[placement]", TABLE.format(limit=1000.0, share=1.0), 1))
    monkeypatch.setattr(campaign_small, "SOURCE", source)
    # A background must not run out of requests while its target's server starts.
    many = {"num_requests": str(REQUESTS)}
    campaign_small.small_protocol(tmp_path / "small.toml", changes=many)
    campaign_small.small_manifests(tmp_path / "private", num_requests=REQUESTS)
    return tmp_path


def identity(site: Site) -> str:
    return Store(site.out, wall_ns=time.time_ns).campaign().id


def test_each_node_is_checked_and_then_runs_several_cells(
    cluster: LocalCluster, sources: Path
) -> None:
    site = Site(sources, sources / "campaign", *on_ray(cluster, "--ray-ship"))
    site.start("--time-scale", "0.03")

    def loading() -> list[RunRecord]:
        return [run for run in site.runs if run.role == "primary" and run.state == "loading"]

    site.wait(lambda: len(loading()) == 2 or not is_locked(site.out))
    assert len(loading()) == 2, site.log()
    slots = [run.attempts[-1].slot for run in loading()]
    cells = {(slot.host, *slot.gpus, slot.width) for slot in slots if slot is not None}
    assert cells == {("alpha", 0, 2), ("alpha", 1, 2)}
    # The rest of the matrix is nothing new.
    site.opprof("stop", "--now", str(site.out))
    # Nothing stays on the nodes, private manifests least of all.
    for run in site.runs:
        if run.state == "interrupted":
            assert (site.out / run.attempts[-1].folder / "server.log").is_file()
    scratch = Path(tempfile.gettempdir()) / f"opprof-{os.geteuid()}-{identity(site)}"
    assert not scratch.exists()
    records = {run.run: run for run in site.runs}
    checked = [run for run in records.values() if run.role != "primary"]
    assert {run.state for run in checked} == {"complete"}, site.log()

    gates = read_gates(site.out)
    assert set(gates) == {"alpha", "beta"}
    for host, gate in gates.items():
        assert (gate.outcome, gate.authorised_width, gate.host) == ("eight", 2, host)
        assert gate.gpus == [0, 1]
        assert len(gate.inputs) > 0
        for path, sha in gate.inputs.items():
            assert path.startswith(f"colocation/{host}/") and sha256_file(site.out / path) == sha
        # Its caches were warm: each host had a burn-in of its own.
        burnins = [r for r in records.values() if r.role == "burnin"]
        assert sum(r.attempts[-1].slot.host == host for r in burnins if r.attempts[-1].slot) == 1
        rounds = [r for r in records.values() if r.role == "colocation" and f"@{host}" in r.run]
        assert len(rounds) == 2 + 2 * 2
        assert {r.attempts[-1].slot.host for r in rounds if r.attempts[-1].slot} == {host}

    shown = site.opprof("status", str(site.out), code=1)
    for host in gates:
        assert f"host {host} (GPU 0,1): 2 of its GPU slots at once" in shown
    planned = site.opprof("plan", str(site.out))
    assert "alpha: 2 GPU slots at once, as its gate authorises" in planned

    charges = read_ledger(site.out / NAME)
    assert ledger_problems(charges, site.runs) == []
    assert open_reservations(charges) == {}
    assert sum(charge.kind == "colocation" for charge in charges) == 2 * (2 + 2 * 2)
    assert not site.left()
