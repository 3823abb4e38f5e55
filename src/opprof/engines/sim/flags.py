"""vLLM's command line, as far as the embedded engine models it.

A setting that the engine knows is kept. One that changes nothing here (addresses, logs, what the
protocol's own tables say) is passed over. Every other one is named, so that nobody takes what the
engine does for what that setting would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from opprof.errors import InputError

_PASSED_OVER = frozenset(
    {
        # Told by the protocol's tables, or by the campaign for each run.
        *("-tp", "--tensor-parallel-size", "--max-num-seqs", "--max-num-batched-tokens"),
        *("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
        *("--enable-prefix-caching", "--no-enable-prefix-caching"),
        *("--profiler-config", "--served-model-name", "--model", "--host", "--port"),
        *("--shutdown-timeout", "--seed"),
        # About files, names and logs: no step of a server with made-up weights differs.
        *("--tokenizer", "--tokenizer-mode", "--load-format", "--download-dir", "--revision"),
        *("--trust-remote-code", "--generation-config", "--uvicorn-log-level"),
        *("--disable-log-stats", "--disable-log-requests", "--enable-log-requests"),
        *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
    }
)
_DTYPES = ("auto", "bfloat16")
"""What the cost model was fitted to."""
_OPEN = "${"
"""A value that only the site knows."""


@dataclass(frozen=True)
class ModelledFlags:
    """What a command line says beyond the protocol's tables; None where it leaves the default."""

    enforce_eager: bool = False
    async_scheduling: bool | None = None
    max_model_len: int | None = None
    kv_blocks: int | None = None
    not_modelled: tuple[str, ...] = ()
    """Flags that a real server would heed and the embedded engine does not, in order."""

    @property
    def words(self) -> list[str]:
        """The same settings as flags of ``opprof serve-sim``."""
        found = []
        if self.enforce_eager:
            found.append("--enforce-eager")
        if self.async_scheduling is not None:
            found.append("--async-scheduling" if self.async_scheduling else "--no-async-scheduling")
        if self.max_model_len is not None:
            found += ["--max-model-len", str(self.max_model_len)]
        if self.kv_blocks is not None:
            found += ["--num-gpu-blocks-override", str(self.kv_blocks)]
        return found


def read_flags(words: Sequence[str]) -> ModelledFlags:
    """Read the words of a vLLM command; a flag that comes twice counts as vLLM counts it: last.

    Raises:
        InputError: a number that is none.
    """
    eager, asynchronous = False, None
    numbers: dict[str, int] = {}
    others: dict[str, None] = {}
    for name, value in _flags(words):
        if name in ("--enforce-eager", "--no-enforce-eager"):
            eager = name == "--enforce-eager"
        elif name in ("--async-scheduling", "--no-async-scheduling"):
            asynchronous = name == "--async-scheduling"
        elif name in ("--max-model-len", "--num-gpu-blocks-override") and _OPEN not in value:
            numbers[name] = _positive(name, value)
        elif name not in _PASSED_OVER and not (name == "--dtype" and value in _DTYPES):
            others[name] = None
    return ModelledFlags(
        eager,
        asynchronous,
        numbers.get("--max-model-len"),
        numbers.get("--num-gpu-blocks-override"),
        tuple(others),
    )


def not_modelled(command: Sequence[str], configs: Iterable[Sequence[str]]) -> list[str]:
    """Return the flags of a server command, under any configuration, that are not heeded."""
    read = (read_flags([*command, *flags]) for flags in configs)
    return list(dict.fromkeys(name for found in read for name in found.not_modelled))


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with the word that follows it or its own ``=`` part; empty for none."""
    for word, following in pairwise([*words, ""]):
        if not word.startswith("-") or word.lstrip("-")[:1].isdigit():
            continue
        name, equals, value = word.partition("=")
        plain = "" if following.startswith("-") else following
        # vLLM takes both spellings.
        yield name.replace("_", "-"), value if equals else plain


def _positive(name: str, value: str) -> int:
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise InputError(f"{name} {value}: not a whole number above 0")
