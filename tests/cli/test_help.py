"""What ``--help`` says: every command, every option, nothing cut off."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from opprof.cli import root


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of the command and of everything below it that is shown."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if not below.hidden:
                yield from commands(below, (*path, name))


ALL = list(commands(root, ()))


def found(path: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    command: click.Command = root
    context = click.Context(root, info_name="opprof", terminal_width=80, max_content_width=80)
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(context, name)
        assert below is not None
        command = below
        context = click.Context(command, parent=context, info_name=name)
    return command, context


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_is_whole(path: tuple[str, ...]) -> None:
    command, context = found(path)
    assert command.help
    text = command.get_help(context)
    # click ends a summary that does not fit its line with dots; metavars such as RUN... stay.
    cut = [line for line in text.split("Commands:")[-1].splitlines() if line.endswith("...")]
    assert "Commands:" not in text or not cut
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{' '.join(path)} {parameter.opts[0]} says nothing"
