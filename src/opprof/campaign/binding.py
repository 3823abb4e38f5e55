"""What a campaign is bound to, looked at anew by every controller before it does anything (A-P3-2).

Protocol, code, client, hooks, mappings and launch configurations are compared with
``provenance/``, which holds their copies; manifests by their hashes in ``campaign.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opprof.artifacts.campaign import Campaign
from opprof.campaign.options import Sources, options_of
from opprof.campaign.server import Launch, launch_of
from opprof.campaign.store import Store
from opprof.code_hash import client_sha256, code_sha256
from opprof.errors import InputError, StateConflict
from opprof.files import sha256_file
from opprof.integrity.provenance import record_campaign
from opprof.protocol import Protocol, load_protocol


@dataclass(frozen=True)
class Binding:
    """The checked inputs of a campaign."""

    protocol: Protocol
    launches: Mapping[str, Launch]
    """By configuration."""
    manifests: Mapping[str, str]
    """Pattern to SHA-256."""
    launch_hashes: Mapping[str, str]

    def source_hashes(self, pattern: str, config: str) -> dict[str, str]:
        """Return what an attempt is made from."""
        return {
            "protocol": self.protocol.sha256,
            "code": code_sha256(),
            "client": client_sha256(),
            "manifest": self.manifests[pattern],
            "launch": self.launch_hashes[config],
        }


def bind(store: Store, campaign: Campaign, sources: Sources) -> Binding:
    """Compare everything that a campaign is bound to with what is here now.

    Raises:
        StateConflict: something changed; names it with both hashes.
        InputError: a manifest is missing.
    """
    protocol = load_protocol(store.protocol)
    assert protocol is not None
    check_manifests(campaign.manifests, sources)
    launches = launches_of(protocol, campaign)
    provenance = record_campaign(
        store.folder,
        campaign_id=campaign.id,
        protocol=store.protocol,
        mappings=[protocol.file.mapping.pinned, *protocol.file.mapping.alternatives],
        launches={name: _described(launch, campaign) for name, launch in launches.items()},
        wall_ns=store.wall_ns(),
    )
    return Binding(protocol, launches, dict(campaign.manifests), dict(provenance.launches))


def launches_of(protocol: Protocol, campaign: Campaign) -> dict[str, Launch]:
    """Return the launch configuration of every server configuration of the protocol."""
    return {
        row.id: launch_of(
            protocol,
            row,
            campaign.engine,
            campaign.variables,
            options_of(campaign),
            python=sys.executable,
            time_scale=campaign.time_scale,
            seed=campaign.seed,
        )
        for row in protocol.file.configs
    }


def _described(launch: Launch, campaign: Campaign) -> dict[str, Any]:
    # The interpreter's place is no part of the configuration.
    words = ["${PYTHON}" if word == sys.executable else word for word in launch.words]
    return {
        "command": words,
        "environment": dict(launch.environment),
        "time_scale": campaign.time_scale,
    }


def check_manifests(wanted: Mapping[str, str], sources: Sources) -> None:
    """Compare the manifests with their recorded hashes.

    Raises:
        InputError: one is missing.
        StateConflict: one changed.
    """
    for pattern, recorded in wanted.items():
        path = sources.manifest(pattern)
        if not path.is_file():
            raise InputError(f"no manifest for {pattern} here", path=path)
        seen = sha256_file(path)
        if seen != recorded:
            reason = f"the manifest of {pattern} is {seen} now, recorded is {recorded}"
            raise StateConflict(reason, path=path)


def manifest_hashes(patterns: list[str], sources: Sources) -> dict[str, str]:
    """Return the SHA-256 of each pattern's manifest, checked against its own summary.

    Raises:
        InputError: a manifest is missing, or is of another pattern.
    """
    from opprof.workload.read import open_manifest

    found = {}
    for pattern in patterns:
        path: Path = sources.manifest(pattern)
        if not path.is_file():
            raise InputError(f"no manifest for {pattern} here", path=path)
        with open_manifest(path, verify=True) as manifest:
            if manifest.pattern != pattern:
                raise InputError(f"is of pattern {manifest.pattern}, not {pattern}", path=path)
            found[pattern] = manifest.sha256
    return found
