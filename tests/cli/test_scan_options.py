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


def test_the_help_names_what_pack_refuses_without() -> None:
    """Only manifests of ``materialize-private`` are asked for (docs/integrity.md)."""
    text = str(declared(pack)["--private"]["help"])
    assert "each that materialize-private made for DIR: pack refuses without" in text
    assert "all that DIR used" not in text
