"""``opprof materialize`` and ``opprof materialize-private``: the protocol's manifest generators."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opprof._version import __version__
from opprof.cli.options import required_protocol_option
from opprof.errors import InputError

if TYPE_CHECKING:
    from opprof.artifacts.run import ManifestSummary
    from opprof.protocol import Protocol

TOKENIZER_VARIABLE = "OPPROF_TOKENIZER"
_PROGRESS_INTERVAL_S = 0.1

_tokenizer_option = click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    envvar=TOKENIZER_VARIABLE,
    metavar="DIR",
    help=f"Folder with tokenizer.json of the pinned model (or ${TOKENIZER_VARIABLE}).",
)
_out_option = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Manifest to write (JSONL)."
)
_id_option = click.option("--id", "pattern", required=True, help="Pattern, for instance P03.")
_arrival_option = click.option("--arrival", required=True, help="steady or burst:N.")


@click.command("materialize")
@_id_option
@click.option("--kind", required=True, help="synthetic or prefix-pool.")
@click.option("--input-uniform", metavar="LO:HI", help="Integer-uniform lengths, both included.")
@click.option("--input-fixed", type=int, metavar="N", help="One length for all requests.")
@click.option(
    "--input-mixture",
    metavar="JSON",
    help='Exact shares, for instance {"uniform:128:512":0.5,"fixed:4096":0.5}.',
)
@click.option("--num-prefixes", type=int, help="prefix-pool: number of shared prefixes.")
@click.option("--prefix-len", type=int, help="prefix-pool: tokens of each shared prefix.")
@click.option("--suffix-fixed", type=int, help="prefix-pool: tokens of each request's own suffix.")
@click.option("--output-fixed", type=int, required=True, help="Output tokens of every request.")
@click.option("--prefix", help="synthetic: none, the only class it makes.")
@_arrival_option
@click.option("--num-requests", type=int, required=True, help="Lines of the manifest.")
@click.option("--workload-seed", "seed", type=int, required=True, help="Seed of default_rng.")
@_tokenizer_option
@required_protocol_option
@_out_option
def materialize(
    out: Path, tokenizer: Path | None, protocol_source: str | None, **flags: Any
) -> None:
    """Write a token-exact synthetic manifest, its index and its manifest.sha256."""
    from opprof.workload.materialize import materialize_synthetic
    from opprof.workload.parameters import build_spec
    from opprof.workload.tokenizer import load_vocabulary

    started = time.monotonic()
    bound = _protocol(protocol_source)
    limit = bound.file.workload.max_common_prefix_tokens
    spec = build_spec(max_common_prefix_tokens=limit, **flags)
    vocabulary = load_vocabulary(_tokenizer(tokenizer))
    summary = materialize_synthetic(
        spec,
        vocabulary,
        out,
        provenance=_provenance(bound),
        on_progress=_progress("requests written of"),
    )
    _report(summary, out, time.monotonic() - started)


@click.command("materialize-private")
@_id_option
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    required=True,
    help="JSONL trace with sampling_u, input_length, output_length and prompt.",
)
@click.option("--sampling-u-max", type=float, required=True, help="Keep rows up to this.")
@click.option("--max-input-tokens", type=int, required=True, help="Keep rows up to this length.")
@click.option("--output-cap", type=int, required=True, help="Most output tokens to ask for.")
@click.option("--preserve-prompts", is_flag=True, help="Required: prompts stay to the letter.")
@click.option("--disable-shuffle", is_flag=True, help="Required: the source's order stays.")
@_arrival_option
@click.option("--expect-sha256", metavar="HEX", help="Refuse a source with another hash.")
@click.option("--expect-rows", type=int, metavar="N", help="Refuse a source with other rows.")
@_tokenizer_option
@required_protocol_option
@_out_option
def materialize_private(
    tokenizer: Path | None,
    protocol_source: str | None,
    source: Path,
    out: Path,
    preserve_prompts: bool,
    disable_shuffle: bool,
    **flags: Any,
) -> None:
    """Write a private manifest of real prompts, in a folder that only its owner can enter."""
    from opprof.workload.privacy import readable_by_others
    from opprof.workload.private import PrivateSpec, materialize_trace
    from opprof.workload.tokenizer import load_counter, load_vocabulary

    started = time.monotonic()
    if not (preserve_prompts and disable_shuffle):
        raise InputError(
            "--preserve-prompts and --disable-shuffle are required: a private manifest neither"
            " rewrites prompts nor reorders them"
        )
    bound = _protocol(protocol_source)
    limits = bound.file.private_source
    if limits is None:
        raise InputError(f"the protocol {bound.file.id} has no [private_source] with its limits")
    spec = PrivateSpec(
        tokenizer_exact_min=limits.tokenizer_exact_min,
        tokenizer_error_max_tokens=limits.tokenizer_error_max_tokens,
        **flags,
    )
    spec.check()
    location = _tokenizer(tokenizer)
    vocabulary, count = load_vocabulary(location), load_counter(location)
    if source.is_file() and readable_by_others(source):
        click.echo(f"note: {source} can be read by others; chmod 600 it", err=True)
    summary = materialize_trace(
        spec,
        source,
        count,
        vocabulary.sha256,
        out,
        provenance=_provenance(bound),
        on_progress=_progress("rows read, selected"),
    )
    _report(summary, out, time.monotonic() - started)


def _protocol(source: str | None) -> Protocol:
    from opprof.protocol import load_protocol

    protocol = load_protocol(source)
    if protocol is None:
        raise InputError("a manifest needs a protocol, for its limits are there; none is bound")
    return protocol


def _provenance(protocol: Protocol) -> dict[str, Any]:
    return {"protocol_sha256": protocol.sha256, "opprof_version": __version__}


def _tokenizer(location: Path | None) -> Path:
    if location is None:
        raise InputError(
            f"no tokenizer: give --tokenizer DIR (a folder with tokenizer.json) or set"
            f" {TOKENIZER_VARIABLE}"
        )
    return location


def _progress(what: str) -> Callable[[int, int], None] | None:
    """Return a display of two counts on a terminal, at most ten times a second; else None."""
    if not sys.stderr.isatty():
        return None
    shown = 0.0

    def show(done: int, other: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            click.echo(f"\r{done:,} {what} {other:,}\x1b[K\r", nl=False, err=True)

    return show


def _report(summary: ManifestSummary, out: Path, seconds: float) -> None:
    lengths = summary.input_tokens
    if sys.stderr.isatty():
        click.echo("\x1b[K", nl=False, err=True)
    click.echo(
        f"{summary.pattern}: {lengths.n:,} requests, {lengths.sum:,} input tokens"
        f" ({lengths.min:,} to {lengths.max:,}), {summary.output_tokens.sum:,} output tokens,"
        f" {summary.arrival}, prefix {summary.prefix}"
    )
    click.echo(f"{out}: sha256 {summary.sha256} ({seconds:.1f} s)")
