"""Protocol files of odd but legal shapes, and values that only a finished campaign would miss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opprof.cli import main
from opprof.errors import InputError
from opprof.protocol.amend import Request, amend_protocol, chain_problems
from opprof.protocol.check import check_protocol
from opprof.protocol.freeze import Approvals, Installation, freeze_protocol
from opprof.protocol.load import Protocol, packaged_path, parse_protocol

TEXT = packaged_path().read_text()
HERE = Installation("1", "1" * 64, "2" * 64, "3" * 64, "4" * 64, {"v1": "5" * 64, "v2": "6" * 64})
DATE = "2026-11-30"


def changed(key: str, literal: str) -> str:
    """Return the packaged protocol with the first value of a key replaced."""
    text, count = re.subn(rf"(?m)^{key} = .*$", lambda _m: f"{key} = {literal}", TEXT, count=1)
    assert count == 1
    return text


def run(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (changed("workload", "9" * 5000), r":\d+: not TOML: Exceeds the limit"),
        (TEXT + "\nx = " + "[" * 20000, "inside one another"),
        (TEXT + "\nx = " + "{a=" * 900 + "1" + "}" * 900, "inside one another"),
        (TEXT + "\n" + ".".join("a" * 3000) + " = 1\n", "inside one another"),
        ("\ufeff" + TEXT, "@ byte 0: begins with a byte order mark"),
        (changed("title", '"a\\u001b[2Jb"'), r":\d+: .*'\\x1b' shows nothing - at `\$.title`"),
        (changed("id", '"phase3\\n"'), r"'\\n' shows nothing - at `\$.id`"),
        (changed("date", '"2026-07-12\\n"'), r"'\\n' shows nothing - at `\$.date`"),
        (changed("date", '"٢٠٢٦-07-12"'), "matching regex"),
        (TEXT.replace("P11", "P" * 65), "length <= 64"),
        (TEXT.replace("C11", "C" * 300), "length <= 64"),
        (changed("flags", '["--a\\nb"]'), r"flags\[0\]"),
        (
            TEXT.replace("[server.environment]", '[server.environment]\nA = "x\\u0000y"'),
            r"'\\x00' shows nothing - at `\$.server.environment.A`",
        ),
        (TEXT.replace("[variables]", '[variables]\n"a\\nb" = "x"'), "shows nothing"),
    ],
)
def test_a_file_that_no_record_can_hold_is_one_error(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse_protocol(text.encode(), source="odd.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (changed("date", '"2026-99-12"'), "date: '2026-99-12' is no day"),
        (changed("families", "[]"), "ranking.families: empty"),
        (changed("features", "[]"), "representativeness.features: empty"),
        (changed("bin_s", "1e-6"), "statistics.bin_s: 2.4e\\+08 bins"),
        (changed("percentiles", "[50, 50]"), "statistics.percentiles: '50' occurs twice"),
        (changed("alternatives", '["v1", "v1"]'), "mapping.alternatives: 'v1' occurs twice"),
        (
            TEXT.replace('backgrounds_four = ["', 'backgrounds_four = ["P03", "P03", "'),
            "backgrounds_four with colocation.pattern: 'P03' occurs twice",
        ),
        (TEXT.replace("[variables]", '[variables]\n"a b" = "x"'), "variables: 'a b' is no name"),
        (TEXT.replace("[variables]", '[variables]\nTP = "x"'), "variables.TP: is filled"),
        *(
            (changed("cpu_map", str(["x", "3-1", "", "9" * 5000, "4", "5", "6", "7"])), problem)
            for problem in ("'x' is neither", "'3-1' is no range", "without a CPU", "9999' is")
        ),
        *(
            (
                TEXT.replace("[server.environment]", f'[server.environment]\n"{name}" = "x"'),
                f"server.environment: '{name}' is no variable",
            )
            for name in ("", "A=B", "a b", "OPPROF_CAMPAIGN")
        ),
    ],
)
def test_a_value_that_no_campaign_could_run_under_is_named(text: str, problem: str) -> None:
    found = check_protocol(parse_protocol(text.encode(), source="odd.toml").file)
    assert any(re.search(problem, each) for each in found), found


def test_prose_and_commands_may_have_lines() -> None:
    text = changed("title", '"""one\n\ttwo"""')
    assert parse_protocol(text.encode(), source="x").file.title == "one\n\ttwo"


def frozen(text: str) -> Protocol:
    draft = parse_protocol(text.encode(), source="draft.toml")
    data = freeze_protocol(draft, Approvals({}, DATE, "Ann"), date=DATE, here=HERE)
    return parse_protocol(data, source="frozen.toml")


@pytest.mark.parametrize("mark", ["amendments = []", "amendments=[ ]", "amendments = []  # none"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_with_an_empty_list_of_amendments_can_be_amended(mark: str, end: str) -> None:
    blocks = re.split(r"(?m)^(?=\[)", TEXT)
    kept = "".join(block for block in blocks if not block.startswith("[[amendments]]"))
    base = frozen(re.sub(r"(?m)^date = .*$", rf"\g<0>\n{mark}", kept, count=1).replace("\n", end))
    request = Request("A-X-1", "t", "r", DATE, [("gates.classifiable_min", "0.75")])
    once = parse_protocol(amend_protocol(base, request, here=HERE), source="once.toml")
    assert once.file.gates.classifiable_min == 0.75
    assert chain_problems(once) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("title", "a\udc80b", "no UTF-8 text"),
        ("title", "a\x1bb", "shows nothing"),
        ("server.environment.F O", "1", "no key that can be added"),
        ("server.environment.A\nB", "1", "no key that can be added"),
        ("patterns.P01.", "1", "no key that can be added"),
        ("seeds.workload", "9" * 5000, "Expected `int`"),
    ],
)
def test_an_amendment_that_no_file_can_hold_is_one_error(key: str, value: str, reason: str) -> None:
    request = Request("A-X-1", "t", "r", DATE, [(key, value)])
    with pytest.raises(InputError, match=reason) as caught:
        amend_protocol(frozen(TEXT), request, here=HERE)
    assert caught.value.line is None


def test_what_the_commands_are_given_ends_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    unsound = tmp_path / "unsound.toml"
    unsound.write_text(TEXT.replace('id = "C11"', 'id = "C12"'))
    freeze = ("protocol", "freeze", "phase3", "--approve-all", "--by", "Ann", "--out")
    for words, reason in (
        ((*freeze, str(dangling)), "exists already"),
        ((*freeze, str(tmp_path / "a"), "--date", "9999-12-31"), "has come"),
        ((*freeze, str(tmp_path / "a"), "--approve", "9" * 5000), "is not N"),
        (("protocol", "show", str(unsound)), "no configuration is called 'C11'"),
        (("protocol", "check", "x" * 5000), "File name too long"),
        (("campaign", "status", str(tmp_path / ("x" * 300))), "File name too long"),
        (("campaign", "logs", str(tmp_path)), "is no campaign folder"),
        (("campaign", "resume", str(tmp_path)), "is no campaign folder"),
        (("campaign", "plan", "phase3", "--gpus", "9" * 5000), "not a list of GPU"),
        (("campaign", "plan", "phase3", "--time-scale", "1e308"), "between 1e-06 and 1e+06"),
    ):
        assert run(*words) == 2
        said = capsys.readouterr().err
        assert reason in said
        assert "Traceback" not in said
    assert dangling.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "unsound.toml"]
