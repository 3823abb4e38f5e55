"""One fixed colour and pattern per operator family, safe for colour-blind readers.

The hues are those of Okabe and Ito (2008), "Color Universal Design", with a violet in the place of
black, which a dark page would swallow. Families that are small or not classified also carry a
hatch, so that no reading depends on hue alone.
"""

from __future__ import annotations

from msgspec import Struct


class Swatch(Struct, frozen=True):
    """How one family is drawn and named."""

    label: str
    colour: str
    hatch: str = ""
    """plotly's bar pattern; empty for a plain fill."""
    dark_text: bool = False
    """True where labels on the fill must be dark to be readable."""


FAMILIES: dict[str, Swatch] = {
    "attention": Swatch("attention", "#0072B2"),
    "moe_gemm": Swatch("MoE GEMM", "#D55E00"),
    "dense_gemm": Swatch("dense GEMM", "#E69F00", dark_text=True),
    "norm_elementwise": Swatch("norm/elementwise", "#009E73"),
    "moe_router": Swatch("MoE router", "#CC79A7", dark_text=True),
    "collective": Swatch("collective", "#56B4E9", dark_text=True),
    "sampler": Swatch("sampler", "#F0E442", dark_text=True),
    "kv_memory": Swatch("KV memory", "#7A5195", "."),
    "other": Swatch("other (unmatched)", "#8A8F98", "/"),
    "graph_replay_opaque": Swatch("opaque graph replay", "#5B6068", "x"),
}
"""In the order in which stacks are drawn."""

_SPARE = ("#44AA99", "#999933", "#882255", "#332288", "#117733", "#AA4499")


def hatch(swatch: Swatch) -> dict[str, object]:
    """Return plotly's bar pattern: light strokes over the family's own colour."""
    return {
        "shape": swatch.hatch,
        "fillmode": "overlay",
        "fgcolor": "#ffffff",
        "fgopacity": 0.75,
        "size": 6,
    }


MODES: dict[str, Swatch] = {
    "FULL": Swatch("FULL", "#0072B2"),
    "PIECEWISE": Swatch("PIECEWISE", "#E69F00", dark_text=True),
    "NONE": Swatch("NONE (eager)", "#8A8F98"),
}

INTERVALS: dict[str, Swatch] = {
    "warmup": Swatch("warm-up", "#8A8F98"),
    "clean": Swatch("clean segment", "#009E73"),
    "profile": Swatch("profile window", "#D55E00"),
    "recovery": Swatch("recovery", "#CC79A7"),
    "drain": Swatch("drain", "#56B4E9"),
}


def family(name: str) -> Swatch:
    """Return the swatch of a family; a family of a user's own table gets a stable spare colour."""
    known = FAMILIES.get(name)
    if known is not None:
        return known
    return Swatch(name, _SPARE[sum(name.encode()) % len(_SPARE)], "\\")


def family_order(names: set[str]) -> list[str]:
    """Return ``names`` in drawing order: the known families first, then the others by name."""
    known = [name for name in FAMILIES if name in names]
    return known + sorted(names - set(FAMILIES))


def mode_order(names: set[str]) -> list[str]:
    """Return graph modes in drawing order."""
    return [name for name in MODES if name in names] + sorted(names - set(MODES))
