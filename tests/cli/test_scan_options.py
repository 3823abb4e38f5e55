"""``scan`` and ``pack`` take the same options of a privacy scan, declared once."""

from __future__ import annotations

import click

from opprof.cli.pack import pack
from opprof.cli.scan import scan


def declared(command: click.Command) -> dict[str, dict[str, object]]:
    return {
        parameter.opts[0]: {
            key: value for key, value in parameter.to_info_dict().items() if key != "type"
        }
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }


def test_both_commands_declare_the_same_four() -> None:
    names = ["--private", "--private-dir", "--public", "--jobs"]
    ours, theirs = declared(scan), declared(pack)
    assert [ours[name] for name in names] == [theirs[name] for name in names]
    assert ours["--private"]["required"] and ours["--private"]["multiple"]
