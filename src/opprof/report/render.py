"""A page's values as one HTML file that opens offline and loads nothing.

The content security policy of the file allows two scripts, by hash (the page's own and plotly.js),
and no connection of any kind; all text is escaped besides, so that a kernel's or run's name can
neither break the page nor run anything.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from opprof._version import __version__
from opprof.artifacts.common import Value
from opprof.errors import EnvironmentFailure
from opprof.files import atomic_writer
from opprof.report.blocks import Figure, walk
from opprof.report.cells import name_of
from opprof.report.formats import number
from opprof.report.inputs import ReportInput
from opprof.report.page import Page, build_page
from opprof.report.tables.cells import OUTCOMES

if TYPE_CHECKING:
    import jinja2

_EXTRA = "the HTML report needs an optional extra: pip install 'opprof[report]'"


def write_report(report: ReportInput, path: Path) -> int:
    """Write the report of ``report`` to ``path``, whole or not at all; return its bytes.

    Raises:
        EnvironmentFailure: the extra ``report`` is missing, or the file cannot be written.
    """
    data = render(report).encode()
    with atomic_writer(path) as stream:
        stream.write(data)
    return len(data)


def render(report: ReportInput) -> str:
    """Return the whole HTML text; the same input gives the same text.

    Raises:
        EnvironmentFailure: the extra ``report`` (plotly, Jinja2) is missing.
    """
    library = plotly_js()
    environment = _environment()
    page = build_page(report)
    script = _asset("report.js")
    from markupsafe import Markup  # comes with Jinja2

    return environment.get_template("report.html").render(
        page=page,
        version=__version__,
        outcomes=OUTCOMES,
        policy=_policy(script, library),
        css=Markup(_asset("report.css")),
        script=Markup(script),
        plotly=Markup(_packed(library)),
        sanity_json=Markup(json_text(_sanity(report, page))),
        figures_json=Markup(json_text(_figures(page))),
    )


def require_extra() -> None:
    """Fail now, and not after minutes of analysis, where the extra is missing.

    Raises:
        EnvironmentFailure: plotly or Jinja2 is not installed.
    """
    plotly_js()
    _environment()


def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise EnvironmentFailure(_EXTRA) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    return environment


@lru_cache(maxsize=1)
def plotly_js() -> str:
    """Return the plotly.js that the plotly package brings.

    Raises:
        EnvironmentFailure: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise EnvironmentFailure(_EXTRA) from error
    return str(get_plotlyjs())


@lru_cache(maxsize=1)
def _packed(library: str) -> str:
    # Packed, the library takes 2 MB in place of 5, and none of its addresses stands in the file.
    return base64.b64encode(zlib.compress(library.encode(), 9)).decode()


def _asset(name: str) -> str:
    return (resources.files("opprof.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def json_text(value: object) -> str:
    """Return JSON that is safe inside a script element, whatever strings it holds."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _figures(page: Page) -> dict[str, object]:
    return {
        block.ident: {"data": block.data, "layout": block.layout}
        for section in page.sections
        for block in walk(section.blocks)
        if isinstance(block, Figure)
    }


def _sanity(report: ReportInput, page: Page) -> dict[str, object]:
    runs = [
        {
            "name": run.identity.name,
            "red_flags": run.red_flags,
            "artefacts": dict(run.sanity_blocks()),
        }
        for run in report.runs
    ]
    found: dict[str, object] = {"red_flags": page.sanity.red_flags, "runs": runs}
    for part in report.compared:
        if part.comparison is not None:
            cells = {name_of(cell): cell.sanity for cell in part.comparison.cells}
            found[f"cells{part.tag}"] = cells
    if report.decision is not None:
        tables = report.decision.alternatives
        found["decision"] = report.decision.sanity
        found["decision_tables"] = {name: table.sanity for name, table in tables.items()}
    return {**found, "report": page.sanity}


def plain(value: Value) -> str:
    """Return a gate's number or short text for reading."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "none"
    return number(value, 6)
