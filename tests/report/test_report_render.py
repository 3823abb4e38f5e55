"""The HTML file: offline, escaped, deterministic, whole or absent, with its data inside."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from opprof.artifacts.common import Gate
from opprof.artifacts.run import Interval
from opprof.errors import EnvironmentFailure
from opprof.report import ReportInput, render, write_report
from opprof.report.render import json_text, plain, plotly_js

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"


class Page(HTMLParser):
    """Collects tags, attributes, ids and the text of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or "page"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data

    def json(self, ident: str) -> Any:
        return json.loads(self.scripts[ident])


TEXT = render(samples.sample())
PAGE = Page(TEXT)


def test_nothing_is_loaded_from_anywhere() -> None:
    assert not re.search(r"https?://", TEXT)
    assert not re.search(r"url\(|@import|//[\w-]+\.\w+/", TEXT.split('id="plotly-deflate"')[0])
    for tag, attributes in PAGE.tags:
        for name in ("src", "srcset", "data", "action", "poster"):
            assert name not in attributes, (tag, attributes)
        target = attributes.get("href")
        assert target is None or target.startswith("#") or target == "data:,", target


def test_policy_allows_the_two_scripts_and_no_connection() -> None:
    policy = next(a["content"] for t, a in PAGE.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy and "connect-src" not in policy
    (scripts,) = re.findall(r"script-src ([^;]+);", policy)
    assert len(re.findall(r"'sha256-[^']+'", scripts)) == 2 and "unsafe" not in scripts


def test_the_library_inside_is_plotlys_own() -> None:
    packed = base64.b64decode(PAGE.scripts["plotly-deflate"])
    assert zlib.decompress(packed).decode() == plotly_js()


def test_file_stays_below_five_megabytes() -> None:
    assert len(TEXT.encode()) < 5_000_000


def test_same_input_gives_the_same_bytes() -> None:
    assert render(samples.sample()) == TEXT


def test_sanity_blocks_are_embedded_as_json() -> None:
    sanity = PAGE.json("sanity")
    names = [run["name"] for run in sanity["runs"]]
    assert names == [run.identity.name for run in samples.sample().runs]
    assert set(sanity["runs"][0]["artefacts"]) == {"layer1", "kernels", "waste", "sanity"}
    assert sanity["runs"][3]["red_flags"] == [
        "clean prefix-hit ratio 0.99 in a pattern without shared prefixes"
    ]
    cells = sanity["cells"]
    assert "P01 · C00" in cells and all(block["families"] for block in cells.values())
    families = {family["name"]: family for family in sanity["report"]["families"]}
    assert families["shares/x/attention"]["max"] == pytest.approx(46.0)
    assert families["throughput-table/completed"]["n"] == 5


def test_data_of_every_figure_is_embedded() -> None:
    drawn = [a["data-figure"] for t, a in PAGE.tags if "data-figure" in a]
    figures = PAGE.json("figures")
    assert sorted(figures) == sorted(str(name) for name in drawn) and len(drawn) == 11


def test_identifiers_are_unique_and_links_lead_somewhere() -> None:
    idents = [a["id"] for _, a in PAGE.tags if "id" in a]
    assert len(set(idents)) == len(idents)
    links = [a["href"] for t, a in PAGE.tags if t == "a"]
    assert all(str(link)[1:] in idents for link in links)


def hostile() -> ReportInput:
    run = samples.view(
        samples.identity(HOSTILE, name=HOSTILE),
        [samples.DECODE] * 2,
        failed=(HOSTILE,),
        red_flags=(HOSTILE,),
        unmatched=HOSTILE,
    )
    assert run.sanity is not None
    gate = Gate(HOSTILE, "fail", HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, HOSTILE, HOSTILE)
    sanity = msgspec.structs.replace(run.sanity, gates=[gate])
    return ReportInput((msgspec.structs.replace(run, sanity=sanity),), title=HOSTILE)


def test_hostile_names_add_no_element_and_no_script() -> None:
    page = Page(render(hostile()))
    assert sum(tag == "script" for tag, _ in page.tags) == 4
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, a in page.tags for name in a)
    assert HOSTILE in json.dumps(page.json("sanity"), ensure_ascii=False).replace('\\"', '"')
    for script in (page.scripts["sanity"], page.scripts["figures"]):
        assert "<" not in script and ">" not in script


def test_hostile_names_are_no_markup_in_figures() -> None:
    # plotly reads a subset of HTML in labels, links among it.
    figures = json.dumps(Page(render(hostile())).json("figures"), ensure_ascii=False)
    assert "<script" not in figures and "<img" not in figures
    assert "&lt;script&gt;" in figures


@given(st.recursive(st.text() | st.floats() | st.none(), lambda s: st.lists(s), max_leaves=8))
def test_json_in_a_script_element_survives_any_text(value: object) -> None:
    text = json_text({"value": value})
    assert not set(text) & set("<>&\u2028\u2029")
    assert msgspec.json.decode(text) == msgspec.json.decode(msgspec.json.encode({"value": value}))


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, module, None)
    plotly_js.cache_clear()
    with pytest.raises(EnvironmentFailure, match=r"pip install 'opprof\[report\]'"):
        render(samples.sample())


def test_missing_template_engine_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(EnvironmentFailure, match=r"pip install 'opprof\[report\]'"):
        render(samples.sample())


def test_file_is_whole_or_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    assert write_report(samples.sample(), out) == len(out.read_bytes())
    assert out.read_text(encoding="utf-8") == TEXT

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(EnvironmentFailure, match="No space left"):
        write_report(samples.sample(), out)
    assert out.read_text(encoding="utf-8") == TEXT
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_simulated_report_carries_a_banner() -> None:
    run = samples.view(samples.identity("P02", simulated=True), [samples.DECODE] * 2)
    text = render(ReportInput((run,)))
    assert '<div class="banner" role="note">SIMULATED' in text
    assert '<div class="banner"' not in TEXT


def test_not_evaluable_has_its_own_look() -> None:
    for outcome in ("fail", "pass", "not_evaluable"):
        assert f'<li class="gate {outcome}">' in TEXT
    css = TEXT.split("<style>")[1].split("</style>")[0]
    assert re.search(r"\.gate\.not_evaluable \{[^}]*dashed", css)


def test_gate_shows_meaning_action_and_numbers() -> None:
    assert "The figures of this run may measure the cache and not the model." in TEXT
    assert "Start a fresh server and run again." in TEXT
    assert "<dt>limit</dt><dd>0.01</dd>" in TEXT
    assert plain([1, None, "x"]) == "1, n/a, x"


def test_runs_without_windows_steps_or_requests_still_make_a_page() -> None:
    run = samples.view(samples.identity("P01", role="confirmation"), [])
    assert run.layer1 is not None
    layer1 = msgspec.structs.replace(
        run.layer1, end_to_end=None, end_to_end_segments=[], clean_union=None, segments=[]
    )
    bare = msgspec.structs.replace(
        run, layer1=layer1, steps=None, intervals=(Interval("clean", 0, 0, 1),)
    )
    text = render(ReportInput((bare,)))
    assert "no profile window, so nothing is known of the GPU&#39;s time" in text
    assert "No step timeline of P01 · C00 · saturation · confirmation" in text
