"""What is looked up once a controller's life, never beside a run: versions, the model's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opprof.artifacts.campaign import Campaign
from opprof.artifacts.environment import Environment, ModelFingerprint, Versions
from opprof.campaign.options import Options, clean_environment
from opprof.campaign.store import Store
from opprof.errors import EnvironmentFailure, InputError, StateConflict
from opprof.files import read_bytes
from opprof.host.model_files import fingerprint
from opprof.host.ports import Host
from opprof.host.versions import versions

MODEL_VARIABLE = "MODEL"
CACHE = "logs/model-files.json"


@dataclass(frozen=True)
class SiteFacts:
    """Goes into every ``environment.json`` of this life."""

    versions: Versions | None
    model: ModelFingerprint | None
    missing: dict[str, str] = field(default_factory=dict)
    """Field to the reason why it is not known."""


def look_up(store: Store, campaign: Campaign, options: Options, host: Host) -> SiteFacts:
    """Ask the engine's interpreter for its versions and hash the model.

    Raises:
        StateConflict: the model's files are not those of the campaign's earlier runs.
        InputError, EnvironmentFailure: the model's folder cannot be read.
    """
    missing: dict[str, str] = {}
    found: Versions | None = None
    try:
        environment = clean_environment() | options.engine_environment
        found, reasons = versions(
            host.driver(), python=options.python or None, environment=environment
        )
        missing |= {f"versions.{name}": reason for name, reason in reasons.items()}
    except EnvironmentFailure as error:
        missing["versions"] = error.reason
    model = _model(store, campaign, missing)
    before = _model_before(store)
    if model is not None and before is not None and model.sha256 != before:
        raise StateConflict(
            f"the model's files hash to {model.sha256} now, earlier runs had {before}",
            path=model.path,
        )
    return SiteFacts(found, model, missing)


def _model(store: Store, campaign: Campaign, missing: dict[str, str]) -> ModelFingerprint | None:
    folder = Path(campaign.variables.get(MODEL_VARIABLE, ""))
    if campaign.simulated or MODEL_VARIABLE not in campaign.variables:
        missing["model"] = "no weights are loaded: the engine is embedded, or no MODEL is named"
        return None
    if not folder.is_dir():
        missing["model"] = "MODEL names no local folder"
        return None
    return fingerprint(folder, store.folder / CACHE)


def _model_before(store: Store) -> str | None:
    for record in store.runs():
        if record.state == "complete" and record.attempt is not None:
            path = store.folder / record.attempt.folder / "environment.json"
            try:
                found = msgspec.json.decode(read_bytes(path), type=Environment)
            except (InputError, msgspec.MsgspecError):
                continue
            if found.model is not None:
                return found.model.sha256
    return None
