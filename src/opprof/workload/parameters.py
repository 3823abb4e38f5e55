"""The generator flags as checked values (protocol, "Operational pattern axes").

Flags arrive as the command line, a protocol row or a program gives them; what leaves here is
consistent: a :class:`ManifestSpec` can be planned without further checks of its domain.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from opprof.errors import InputError
from opprof.workload.arrival import parse_arrival
from opprof.workload.draw import MAX_SPAN

MAX_TOKENS = MAX_SPAN
"""Longest prompt or output, in tokens; above the context of any served model."""
MAX_REQUESTS = 1 << 22
_WEIGHT_TOLERANCE = Fraction(1, 10**9)
_PATTERN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Uniform:
    """Integer-uniform lengths ``low … high``, both included, in tokens."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"uniform:{self.low}:{self.high}"


@dataclass(frozen=True)
class Fixed:
    """One length for all requests, in tokens."""

    tokens: int

    def __str__(self) -> str:
        return f"fixed:{self.tokens}"


@dataclass(frozen=True)
class Mixture:
    """Modes with weights that sum to 1, in the order in which they were given."""

    modes: tuple[Uniform | Fixed, ...]
    weights: tuple[Fraction, ...]

    def counts(self, num_requests: int) -> tuple[int, ...]:
        """Return the exact number of requests of each mode (largest remainder).

        Every mode gets the whole part of ``weight * n``; what is left goes, one each, to the
        largest remainders, the earlier mode first among equals. 50/30/20 of 32,768 is therefore
        16,384, 9,830 and 6,554.

        Raises:
            InputError: a mode would get no request at all.
        """
        shares = [weight * num_requests for weight in self.weights]
        counts = [int(share) for share in shares]
        by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
        for index in by_remainder[: num_requests - sum(counts)]:
            counts[index] += 1
        for mode, count in zip(self.modes, counts, strict=True):
            if count == 0:
                raise InputError(f"mixture mode {mode} gets none of {num_requests} requests")
        return tuple(counts)


@dataclass(frozen=True)
class PrefixPool:
    """``prefixes`` shared prefixes of ``prefix_tokens`` ids, each request with its own suffix."""

    prefixes: int
    prefix_tokens: int
    suffix_tokens: int


@dataclass(frozen=True)
class ManifestSpec:
    """Everything that determines a synthetic manifest, but for the tokenizer's vocabulary."""

    pattern: str
    input: Uniform | Fixed | Mixture | PrefixPool
    output_tokens: int
    arrival: str
    num_requests: int
    seed: int
    max_common_prefix_tokens: int
    """Longest common prefix that two requests (two suffixes of a pool) may have; protocol."""

    @property
    def prefix(self) -> str:
        """The protocol's prefix class: ``high`` for a pool, else ``none``."""
        return "high" if isinstance(self.input, PrefixPool) else "none"

    def describe(self) -> dict[str, Any]:
        """Return the generator's parameters as the summary records them."""
        common: dict[str, Any] = {
            "output_fixed": self.output_tokens,
            "num_requests": self.num_requests,
            "workload_seed": self.seed,
            "max_common_prefix_tokens": self.max_common_prefix_tokens,
        }
        if isinstance(self.input, PrefixPool):
            pool = self.input
            return {
                "kind": "prefix-pool",
                "num_prefixes": pool.prefixes,
                "prefix_len": pool.prefix_tokens,
                "suffix_fixed": pool.suffix_tokens,
                **common,
            }
        if isinstance(self.input, Mixture):
            counts = self.input.counts(self.num_requests)
            modes = zip(self.input.modes, self.input.weights, counts, strict=True)
            mixture = [{"mode": str(m), "weight": float(w), "requests": c} for m, w, c in modes]
            return {"kind": "synthetic", "input": "mixture", "mixture": mixture, **common}
        return {"kind": "synthetic", "input": str(self.input), **common}


def check_pattern(pattern: str) -> str:
    """Return the pattern's name, which must be usable in file names and request ids."""
    if not _PATTERN_NAME.fullmatch(pattern):
        raise InputError(f"--id {pattern!r}: use letters, digits, '_', '-' and '.', at most 64")
    return pattern


def parse_uniform(text: str, *, flag: str = "--input-uniform") -> Uniform:
    """Read ``LO:HI``.

    Raises:
        InputError: not two integers, a length below 1 or above :data:`MAX_TOKENS`, or LO > HI.
    """
    match = re.fullmatch(r"(-?[0-9]{1,18}):(-?[0-9]{1,18})", text)
    if match is None:
        raise InputError(f"{flag} {text!r}: use LO:HI, two integers")
    low, high = int(match.group(1)), int(match.group(2))
    for value in (low, high):
        check_tokens(value, flag=f"{flag} {text!r}")
    if low > high:
        raise InputError(f"{flag} {text!r}: LO is greater than HI")
    return Uniform(low, high)


def check_tokens(value: int, *, flag: str) -> int:
    """Return a length in tokens if it lies in 1 … :data:`MAX_TOKENS`."""
    if not 1 <= value <= MAX_TOKENS:
        raise InputError(f"{flag}: a length of {value} tokens is outside 1 … {MAX_TOKENS}")
    return value


def parse_mixture(text: str) -> Mixture:
    """Read ``{"uniform:LO:HI": WEIGHT, "fixed:N": WEIGHT, …}``; weights are read as decimals.

    Raises:
        InputError: no JSON object, an unknown or repeated mode, a weight that is no positive
            number, or weights that do not sum to 1 (within 1e-9).
    """
    flag = "--input-mixture"
    try:
        pairs = json.loads(text, object_pairs_hook=list, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{flag}: not JSON: {error}") from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise InputError(f"{flag}: use a JSON object from mode to weight")
    if not pairs:
        raise InputError(f"{flag}: there is no mode")
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise InputError(f"{flag}: a mode occurs twice")
    weights = tuple(_weight(name, weight) for name, weight in pairs)
    total = sum(weights, Fraction(0))
    if abs(total - 1) > _WEIGHT_TOLERANCE:
        raise InputError(f"{flag}: the weights sum to {float(total):.12g}, not to 1")
    modes = tuple(_mode(name) for name in names)
    return Mixture(modes, tuple(weight / total for weight in weights))


def _weight(name: str, weight: object) -> Fraction:
    number = isinstance(weight, (int, Decimal)) and not isinstance(weight, bool)
    if not number or not Decimal(str(weight)).is_finite():
        raise InputError(f"--input-mixture: the weight of {name!r} is not a number")
    value = Decimal(str(weight))
    if not 0 < value <= 1 or abs(value.adjusted()) > 18:
        raise InputError(f"--input-mixture: the weight of {name!r} is {weight}, not in (0, 1]")
    return Fraction(value)


def _mode(name: str) -> Uniform | Fixed:
    kind, _, rest = name.partition(":")
    flag = f"--input-mixture mode {name!r}"
    if kind == "uniform":
        return parse_uniform(rest, flag=flag)
    if kind == "fixed" and re.fullmatch(r"-?[0-9]{1,18}", rest):
        return Fixed(check_tokens(int(rest), flag=flag))
    raise InputError(f"{flag}: use uniform:LO:HI or fixed:N")


def build_spec(
    *,
    pattern: str,
    kind: str,
    output_fixed: int,
    arrival: str,
    num_requests: int,
    seed: int,
    max_common_prefix_tokens: int,
    prefix: str | None = None,
    input_uniform: str | None = None,
    input_fixed: int | None = None,
    input_mixture: str | None = None,
    num_prefixes: int | None = None,
    prefix_len: int | None = None,
    suffix_fixed: int | None = None,
) -> ManifestSpec:
    """Check the flags of ``materialize`` and return them as one value.

    Raises:
        InputError: an unknown kind, a value outside its domain, or flags that do not go together.
    """
    inputs = {
        "--input-uniform": input_uniform,
        "--input-fixed": input_fixed,
        "--input-mixture": input_mixture,
    }
    pool = {
        "--num-prefixes": num_prefixes,
        "--prefix-len": prefix_len,
        "--suffix-fixed": suffix_fixed,
    }
    lengths: Uniform | Fixed | Mixture | PrefixPool
    if kind == "synthetic":
        lengths = _synthetic(inputs, pool, prefix)
    elif kind == "prefix-pool":
        lengths = _prefix_pool(inputs, pool, prefix, num_requests)
    else:
        raise InputError(f"--kind {kind!r} is unknown: use 'synthetic' or 'prefix-pool'")
    if not 1 <= num_requests <= MAX_REQUESTS:
        raise InputError(f"--num-requests {num_requests} is outside 1 … {MAX_REQUESTS}")
    if not 0 <= seed < 1 << 63:
        raise InputError(f"--workload-seed {seed} is outside 0 … 2^63-1")
    if isinstance(lengths, Mixture):
        lengths.counts(num_requests)
    parse_arrival(arrival)
    return ManifestSpec(
        pattern=check_pattern(pattern),
        input=lengths,
        output_tokens=check_tokens(output_fixed, flag="--output-fixed"),
        arrival=arrival,
        num_requests=num_requests,
        seed=seed,
        max_common_prefix_tokens=max_common_prefix_tokens,
    )


def _synthetic(
    inputs: dict[str, Any], pool: dict[str, Any], prefix: str | None
) -> Uniform | Fixed | Mixture:
    _refuse(pool, "belongs to --kind prefix-pool, not to synthetic")
    if prefix not in (None, "none"):
        raise InputError(
            f"--prefix {prefix!r}: a synthetic manifest shares nothing (use 'none');"
            " shared prefixes come from --kind prefix-pool"
        )
    given = [flag for flag, value in inputs.items() if value is not None]
    if len(given) != 1:
        found = "none was given" if not given else f"given were {' and '.join(given)}"
        raise InputError(f"exactly one of {', '.join(inputs)} is needed; {found}")
    if inputs["--input-uniform"] is not None:
        return parse_uniform(inputs["--input-uniform"])
    if inputs["--input-fixed"] is not None:
        return Fixed(check_tokens(inputs["--input-fixed"], flag="--input-fixed"))
    return parse_mixture(inputs["--input-mixture"])


def _prefix_pool(
    inputs: dict[str, Any], pool: dict[str, Any], prefix: str | None, num_requests: int
) -> PrefixPool:
    _refuse(inputs, "belongs to --kind synthetic; a pool takes --prefix-len and --suffix-fixed")
    if prefix is not None:
        raise InputError(f"--prefix {prefix!r} belongs to --kind synthetic, not to prefix-pool")
    missing = [flag for flag, value in pool.items() if value is None]
    if missing:
        raise InputError(f"--kind prefix-pool needs {', '.join(missing)}")
    prefixes = int(pool["--num-prefixes"])
    if not 1 <= prefixes <= num_requests:
        raise InputError(
            f"--num-prefixes {prefixes} is outside 1 … {num_requests}, the number of requests"
        )
    prefix_tokens = check_tokens(pool["--prefix-len"], flag="--prefix-len")
    suffix_tokens = check_tokens(pool["--suffix-fixed"], flag="--suffix-fixed")
    check_tokens(prefix_tokens + suffix_tokens, flag="--prefix-len plus --suffix-fixed")
    return PrefixPool(prefixes, prefix_tokens, suffix_tokens)


def _refuse(flags: dict[str, Any], reason: str) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise InputError(f"{flag} {reason}")
