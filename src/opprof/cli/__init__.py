"""The ``opprof`` command: a lazy root, so that one command never pays for another's imports.

Exit codes (contract, section 7): 0 done; 1 a gate, check or the environment failed; 2 unusable
arguments or input, and no verdict of `scan`, `pack` or `verify`; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from opprof._version import __version__
from opprof.errors import InputError, OpprofError, refused

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("opprof.cli.run:run", "Run one load point against a server."),
    "analyze": ("opprof.cli.analyze:analyze", "Analyse run directories: shares, waste, gates."),
    "compare": ("opprof.cli.compare:compare", "Shares and ranking of several runs side by side."),
    "decide": ("opprof.cli.decide:decide", "Decide H1a, H1b and the compound hypothesis."),
    "report": ("opprof.cli.report:report", "Write one HTML report that opens offline."),
    "mapping": ("opprof.cli.mapping:group", "Check and explain operator mapping tables."),
    "materialize": (
        "opprof.cli.materialize:materialize",
        "Write a token-exact synthetic request manifest.",
    ),
    "materialize-private": (
        "opprof.cli.materialize:materialize_private",
        "Write a private manifest of real prompts.",
    ),
    "rehearse": (
        "opprof.cli.rehearse:rehearse",
        "Rehearse a protocol on the embedded engine: cost, gates, decision (simulated).",
    ),
    "serve-sim": (
        "opprof.cli.serve_sim:serve_sim",
        "Serve vLLM's interface on the embedded engine (simulated).",
    ),
    "doctor": ("opprof.cli.doctor:doctor", "Show whether the vLLM plugin fits this machine."),
    "campaign": (
        "opprof.cli.campaign:group",
        "Run a frozen protocol by a detached controller: start, status, stop, resume.",
    ),
    "protocol": ("opprof.cli.protocol:group", "Check, freeze, amend and show a protocol."),
    "scan": ("opprof.cli.scan:scan", "Look for private text in everything that would leave."),
    "verify": ("opprof.cli.verify:verify", "Recompute every hash that a campaign names."),
    "pack": ("opprof.cli.pack:pack", "Pack a folder that verifies and scans clean."),
}
"""Command name to (module:attribute, help line); the one list of what exists."""


_VERDICTS = (["scan"], ["pack"], ["verify"])
"""Commands whose exit code 1 is a verdict, which a fault of this program must never give."""
_NO_VERDICT = 2


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # The help lists every command without importing any of them.
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a gate or the environment failed, 2 unusable input, 130 stopped.",
)
@click.version_option(__version__, prog_name="opprof")
def root() -> None:
    """Pre-registered profiling of LLM serving: what limits the server, and does it generalise?"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every known failure is one message and an exit code, no traceback."""
    with _terminable():
        _main(arguments)


def _main(arguments: list[str] | None) -> None:
    try:
        code = root.main(args=arguments, prog_name="opprof", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except OpprofError as error:
        _fail(error)
    except BrokenPipeError:
        # The reader of our output left: nothing to say, and no traceback at shutdown either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(1)
    except OSError as error:
        _fail(refused(error))
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("opprof: interrupted; what was complete is kept", err=True)
        _leave(130)
    except UnicodeEncodeError as error:
        # Bytes that are no UTF-8 come from arguments only; checks name most of them before.
        given = sys.argv[1:] if arguments is None else arguments
        bad = next((text for text in given if not _is_utf8(text)), None)
        if bad is None:
            raise
        _fail(InputError(f"{bad!r} is no UTF-8 text: {error.reason}"))
    except Exception as error:
        if (sys.argv[1:] if arguments is None else arguments)[:1] not in _VERDICTS:
            raise
        traceback.print_exception(error)
        click.echo("opprof: a fault of this program, and no verdict", err=True)
        _leave(_NO_VERDICT)
    _leave(code if isinstance(code, int) else 0)


def _fail(error: OpprofError) -> None:
    click.echo(f"opprof: error [{error.code}] {one_line(str(error))}", err=True)
    _leave(error.exit_code)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def one_line(text: str) -> str:
    """Escape what would break the line or drive the terminal: a file may be called anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination unwind as Ctrl-C does: temporary files go away and the code is 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _leave(code: int) -> None:
    raise SystemExit(code)
