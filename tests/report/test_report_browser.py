"""The report in a real headless Chromium: figures drawn, no error, no request, both themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import report_chromium as chromium
import report_samples as samples
from test_report_render import hostile

from opprof.report import ReportInput, write_report

# Drawing takes minutes on a loaded machine: `make slow`, which .ci/run calls, looks at the page.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium.BINARY is None,
        reason="no chromium on this machine (Debian: apt-get install chromium)",
    ),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(samples.sample(), path)
    yield path


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Tab]:
    with chromium.tab(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def state(tab: chromium.Tab, name: str) -> str:
    return str(tab.evaluate(f"document.documentElement.dataset.{name}"))


def test_every_figure_is_drawn_without_error_or_request(tab: chromium.Tab, page: Path) -> None:
    tab.open(page)
    holders = tab.evaluate("document.querySelectorAll('[data-figure]').length")
    assert holders == 11
    assert state(tab, "plots") == str(holders) and state(tab, "errors") == "0"
    bars = tab.evaluate("document.querySelectorAll('#shares .bars .point').length")
    assert bars >= 12 * 7  # windows and ranks times families with time in every run
    assert tab.console == []
    assert tab.requests == [page.resolve().as_uri()]


def test_page_does_not_scroll_sideways(tab: chromium.Tab, page: Path) -> None:
    tab.open(page)
    for width in (1600, 1360, 800, 420):
        tab.size(width, 900)
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        tab.until(wide)


def test_the_table_of_runs_fits_a_window_of_1400_pixels(tab: chromium.Tab, tmp_path: Path) -> None:
    sample = samples.sample()
    noted = [
        msgspec.structs.replace(run, note=f"a-folder/{run.identity.name}") for run in sample.runs
    ]
    path = tmp_path / "noted.html"
    write_report(msgspec.structs.replace(sample, runs=tuple(noted)), path)
    tab.open(path)
    tab.size(1400, 900)
    tab.until(
        "(({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth)"
        "(document.getElementById('runs').parentElement)"
    )


def test_no_control_offers_to_send_figures_away(tab: chromium.Tab, page: Path) -> None:
    tab.open(page)
    titles = tab.evaluate(
        "[...new Set([...document.querySelectorAll('.modebar-btn')].map((b) => "
        "b.dataset.title))].join('|')"
    )
    assert titles and not any(word in titles.lower() for word in ("cloud", "chart studio", "edit"))


def test_dark_theme_reaches_the_figures(tab: chromium.Tab, page: Path) -> None:
    tab.open(page, scheme="dark")
    ink = "getComputedStyle(document.querySelector('#shares .xtick text')).fill"
    dark = tab.evaluate(ink)
    tab.press("t")  # auto, then light
    tab.until(f"{ink} !== '{dark}'")
    assert tab.evaluate("document.documentElement.dataset.theme") == "light"
    assert tab.console == []


def test_keyboard_steps_through_the_parts(tab: chromium.Tab, page: Path) -> None:
    tab.open(page)
    current = "document.querySelector('nav [aria-current]').getAttribute('href')"
    assert tab.evaluate(current) == "#verdict"
    tab.press("j")
    tab.until(f"{current} === '#families'")
    tab.press("k")
    tab.until(f"{current} === '#verdict'")


def test_tables_sort_by_number(tab: chromium.Tab, page: Path) -> None:
    tab.open(page)
    found = tab.evaluate(
        """(() => {
          document.querySelectorAll('details').forEach((d) => { d.open = true; });
          const table = document.getElementById('throughput-table');
          const head = table.querySelectorAll('thead th')[1];
          const read = () => [...table.tBodies[0].rows].map((r) => Number(r.cells[1].dataset.sort));
          head.querySelector('button').click();
          const up = read(), first = head.getAttribute('aria-sort');
          head.querySelector('button').click();
          return JSON.stringify([up, first, read(), head.getAttribute('aria-sort')]);
        })()"""
    )
    assert found == ('[[3.4,4,4,9,31],"ascending",[31,9,4,4,3.4],"descending"]')


def test_print_opens_the_numbers_and_keeps_the_page(tab: chromium.Tab, tmp_path: Path) -> None:
    path = tmp_path / "short.html"
    write_report(ReportInput(samples.sample().runs[:1]), path)
    tab.open(path)
    tab.pdf(tmp_path / "report.pdf")
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF-") and data.count(b"/Type /Page\n") >= 5
    assert state(tab, "errors") == "0" and tab.console == []
    closed = "document.querySelectorAll('details.printed:not([open])').length"
    tab.until(f"{closed} > 0")


def test_hostile_names_run_nothing(tab: chromium.Tab, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    write_report(hostile(), path)
    tab.open(path)
    assert state(tab, "errors") == "0" and tab.console == []
    assert tab.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert "alert(1)" in tab.evaluate("document.querySelector('h1').textContent")


def test_simulated_banner_stays_in_view(tab: chromium.Tab, tmp_path: Path) -> None:
    run = samples.view(samples.identity("P02", simulated=True), [samples.DECODE] * 2)
    path = tmp_path / "simulated.html"
    write_report(ReportInput((run,)), path)
    tab.open(path)
    top = tab.evaluate(
        "window.scrollTo({top: 3000, behavior: 'instant'}), "
        "document.querySelector('.banner').getBoundingClientRect().top"
    )
    assert top == 0
