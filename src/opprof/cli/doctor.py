"""``opprof doctor``: what the vLLM plugin would hook here, whether it fits; the machine itself."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import click

from opprof._version import __version__
from opprof.cli.options import json_option, print_json, protocol_option

GROUP = "vllm.general_plugins"


@click.command()
@click.option(
    "--vllm",
    "package",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the vllm package to look at (default: the one this Python would import).",
)
@click.option(
    "--host",
    "look_at_host",
    is_flag=True,
    help="Show this machine instead: GPUs, clocks, processes, NUMA, load, versions. Reads only.",
)
@click.option(
    "--host-file",
    metavar="FILE|dash0",
    help="With --host: a machine from a file (rehearsals), or a packaged one.",
)
@click.option(
    "--cpu-map",
    "print_map",
    is_flag=True,
    help="With --host: print only a [placement] for a protocol, its CPUs split among the GPUs.",
)
@click.option("--gpus", metavar="LIST", help="With --host: only these physical GPUs, as 0,2-3.")
@click.option(
    "--python", metavar="PATH", help="With --host: versions of this interpreter (the engine's)."
)
@protocol_option
@json_option
def doctor(
    package: Path | None,
    look_at_host: bool,
    host_file: str | None,
    print_map: bool,
    gpus: str | None,
    python: str | None,
    protocol_source: str | None,
    as_json: bool,
) -> None:
    """Show what would be hooked in the installed vLLM, and whether it fits. Starts nothing.

    With --host, show the machine as a campaign would record it.

    Exit code 0: it fits, or there is no vLLM here; 1: the plugin would refuse this vLLM, or the
    machine cannot be asked.
    """
    if look_at_host or host_file is not None:
        from opprof.cli.host_report import examine_host, show_host, show_map

        if print_map:
            show_map(host_file, gpus)
            return
        found = examine_host(host_file, gpus, python, protocol_source)
        if as_json:
            print_json(found)
        else:
            show_host(found)
        return
    report = examine(package)
    if as_json:
        print_json(report)
    else:
        show(report)
    if report["verdict"] == "refused":
        raise click.exceptions.Exit(1)


def examine(package: Path | None) -> dict[str, object]:
    """Return the findings as plain values; imports and starts nothing of vLLM."""
    from opprof.engines.vllm import DIRECTORY_VARIABLE, fit
    from opprof.engines.vllm.plugin import ALLOW_VARIABLE
    from opprof.engines.vllm.seams import SEAMS

    table = fit.load_table()
    root = package if package is not None else fit.find_package()
    report: dict[str, object] = {
        "opprof": __version__,
        "python": platform.python_version(),
        "tested_versions": {version: row.how for version, row in table.items()},
        "entry_point": _entry_point(),
        "vllm_plugins": os.environ.get("VLLM_PLUGINS"),
        "recording_folder": _folder(os.environ.get(DIRECTORY_VARIABLE)),
        "allow_untested": os.environ.get(ALLOW_VARIABLE) == "1",
    }
    if root is None:
        return report | {"verdict": "no vllm", "version": None, "hooks": [], "differences": []}
    verdict = fit.check(root, table)
    hooks = [
        {
            "seam": fit.seam_key(seam),
            "use": seam.use,
            "why": seam.why,
            "state": _state(fit.seam_key(seam), verdict),
        }
        for seam in SEAMS
        if not seam.only or verdict.version in seam.only
    ]
    if verdict.tested:
        word = "fits"
    elif verdict.usable and report["allow_untested"]:
        word = "untested, allowed"
    else:
        word = "refused"
    return report | {
        "verdict": word,
        "version": verdict.version,
        "package": verdict.root,
        "hooks": hooks,
        "differences": verdict.differences,
    }


def show(report: dict[str, object]) -> None:
    """Print the findings for a person."""
    echo = click.echo
    echo(f"opprof {report['opprof']}, Python {report['python']} ({sys.executable})")
    tested = report["tested_versions"]
    assert isinstance(tested, dict)
    for version, how in tested.items():
        echo(f"tested with    vLLM {version}: {how}")
    echo(f"entry point    {report['entry_point']}")
    if report["vllm_plugins"] is not None:
        echo(f"VLLM_PLUGINS   {report['vllm_plugins']} (plugins not named in it are left out)")
    echo(f"recording to   {report['recording_folder']}")
    if report["version"] is None:
        echo("vLLM           not installed for this Python: nothing would be hooked")
        return
    echo(f"vLLM           {report['version']} in {report['package']}")
    hooks, differences = report["hooks"], report["differences"]
    assert isinstance(hooks, list)
    assert isinstance(differences, list)
    for hook in hooks:
        echo(f"  {hook['state']:8} {hook['use']:5} {hook['seam']}  ({hook['why']})")
    for line in differences:
        echo(f"differs        {line}")
    echo(f"verdict        {report['verdict']}")


def _state(key: str, verdict: object) -> str:
    from opprof.engines.vllm.fit import Fit

    assert isinstance(verdict, Fit)
    if key not in verdict.hashes:
        return "absent"
    differs = any(line.startswith(f"{key} differs") for line in verdict.differences)
    return "differs" if differs else "same"


def _entry_point() -> str:
    found = [point for point in metadata.entry_points(group=GROUP) if point.name == "opprof"]
    if not found:
        return f"not installed: no 'opprof' in the group {GROUP} (pip install opprof beside vLLM)"
    return f"{found[0].name} = {found[0].value}"


def _folder(name: str | None) -> str:
    if not name:
        return "nowhere: VLLM_OPPROF_DIR is not set, the plugin would do nothing"
    folder = Path(name).expanduser()
    existing = next(path for path in [folder, *folder.parents] if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return f"{folder} (NOT writable)"
    return str(folder)
