"""The manifests of a campaign: made from the protocol's own commands where they are missing.

They lie in the private folder and nowhere else: a campaign holds their hashes.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from opprof.campaign.options import Sources, own_environment
from opprof.errors import EnvironmentFailure, InputError
from opprof.protocol import Protocol, expand
from opprof.workload.privacy import private_folder

_COMMANDS = ("materialize", "materialize-private")


def check_places(sources: Sources, out: Path) -> None:
    """Refuse private data where others can read them, or inside the campaign.

    Raises:
        InputError: names the place and the reason.
    """
    if sources.private is not None and sources.private.exists():
        private_folder(sources.private)
    for path in [*sources.manifests.values(), *([sources.private] if sources.private else [])]:
        if path.resolve().is_relative_to(out.resolve()):
            raise InputError("manifests never lie inside a campaign", path=path)


def make_missing(
    protocol: Protocol,
    patterns: Sequence[str],
    sources: Sources,
    tokenizer: Path,
    say: Callable[[str], None],
) -> None:
    """Run the protocol's manifest command of every pattern that has no manifest yet.

    Raises:
        InputError: there is no private folder to make them in, or a command is none of ours.
        EnvironmentFailure: a command failed; its last words are in the message.
    """
    missing = [name for name in patterns if not sources.manifest(name).is_file()]
    if not missing:
        return
    if sources.private is None:
        raise InputError("--tokenizer makes manifests into --private DIR: give one")
    folder = private_folder(sources.private)
    for name in missing:
        row = protocol.pattern(name)
        assert row is not None
        words = [expand(word, {"PRIVATE": str(folder)}) for word in shlex.split(row.manifest)]
        if not words or words[0] not in _COMMANDS:
            raise InputError(f"the manifest command of {name} is no {' or '.join(_COMMANDS)}")
        command = [sys.executable, "-m", "opprof", *words]
        command += ["--tokenizer", str(tokenizer.absolute()), "--protocol", protocol.source]
        say(f"making the manifest of {name}")
        done = subprocess.run(
            command, env=own_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise EnvironmentFailure(f"the manifest of {name} could not be made: {last[0]}")
