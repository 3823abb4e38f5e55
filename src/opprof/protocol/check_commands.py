"""Do the commands of a protocol say what its tables say: server template, flags, manifests?

A template is words separated by blanks. ``${NAME}`` is filled by the site (``[variables]``) or, for
the names below, by the campaign for each run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from opprof.protocol.model import Config, Pattern, ProtocolFile

GPU_IDS = "GPU_IDS"
RUN_VARIABLES = frozenset({"TP", "TRACE_TMP", "PORT", GPU_IDS, "RUN", "RUN_DIR"})
"""Filled by the campaign for each run: tensor parallel size, the profiler's folder, the server's
port, the GPUs as ``CUDA_VISIBLE_DEVICES`` lists them, the run's name and its directory."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SWITCHES = (
    ("chunked_prefill", "--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    ("prefix_caching", "--enable-prefix-caching", "--no-enable-prefix-caching"),
)
_ITERATIONS = ("wait_iterations", "warmup_iterations", "active_iterations")
_SET_BY_CAMPAIGN = {
    "CUDA_VISIBLE_DEVICES": "${GPU_IDS}",
    "VLLM_OPPROF_DIR": "${RUN_DIR}/opprof",
}
"""Variables that the campaign sets in any case, with the only template that says the same."""
_VALUE_FLAGS = {
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--tensor-parallel-size": "tensor_parallel_size",
}


def check_commands(protocol: ProtocolFile) -> list[str]:
    """Return every disagreement as one sentence that names the key."""
    words = protocol.server.command.split()
    return [
        *_variables(protocol),
        *_environment(protocol),
        *_profiler(protocol, words),
        *_switches(protocol, words),
        *(problem for row in protocol.configs for problem in _flags(row, words)),
        *(problem for row in protocol.patterns for problem in _manifest(row, protocol)),
    ]


def usable_environment(name: str) -> bool:
    """Tell whether a server may be given this variable: a plain name, none of the campaign's."""
    return bool(_NAME.fullmatch(name)) and not name.startswith("OPPROF_")


def variables_of(text: str) -> list[str]:
    """Return the names of the ``${VARIABLES}`` in a template."""
    return _VARIABLE.findall(text)


def _variables(protocol: ProtocolFile) -> Iterator[str]:
    for name in protocol.variables:
        if not _NAME.fullmatch(name):
            yield f"variables: {name!r} is no name of letters, digits and underscores"
        elif name in RUN_VARIABLES:
            yield f"variables.{name}: is filled for each run and cannot be the site's"
    server = protocol.server
    texts = {"server.command": server.command, "pinned.model": protocol.pinned.model}
    texts |= {f"server.environment.{name}": text for name, text in server.environment.items()}
    texts |= {f"configs.{row.id}.flags": " ".join(row.flags) for row in protocol.configs}
    known = set(protocol.variables) | RUN_VARIABLES
    for key, text in texts.items():
        for name in dict.fromkeys(variables_of(text)):
            if name not in known:
                yield f"{key}: ${{{name}}} is neither declared in [variables] nor filled for a run"


def _environment(protocol: ProtocolFile) -> Iterator[str]:
    for name, text in protocol.server.environment.items():
        if not usable_environment(name):
            yield f"server.environment: {name!r} is no variable that a protocol can set"
        wanted = _SET_BY_CAMPAIGN.get(name, text)
        if text != wanted:
            yield f"server.environment.{name}: {text!r}, a campaign sets {wanted!r}"


def _profiler(protocol: ProtocolFile, words: Sequence[str]) -> Iterator[str]:
    """The profiler configuration in the server's command is the schedule of ``[layer2]``."""
    if not protocol.timeline.profile_windows:
        return
    if "--profiler-config" not in words[:-1]:
        yield "server.command: profile windows need a --profiler-config"
        return
    text = words[words.index("--profiler-config") + 1]
    try:
        config = json.loads(_VARIABLE.sub("x", text))
    except ValueError as error:
        yield f"server.command: --profiler-config is no JSON without blanks: {error}"
        return
    if not isinstance(config, dict):
        yield "server.command: --profiler-config is no JSON object"
        return
    for name in _ITERATIONS:
        wanted = getattr(protocol.layer2, name)
        if config.get(name) != wanted:
            yield (
                f"server.command: the profiler's {name} is {config.get(name)}, [layer2] has "
                f"{wanted}"
            )
    if config.get("profiler") != "torch":
        yield "server.command: --profiler-config needs the torch profiler"


def _switches(protocol: ProtocolFile, words: Sequence[str]) -> Iterator[str]:
    for name, on, off in _SWITCHES:
        wanted = getattr(protocol.server, name)
        if (off if wanted else on) in words:
            yield f"server.command: sets {off if wanted else on}, server.{name} is {wanted}".lower()
    if "${TP}" not in protocol.server.command and any(
        row.tensor_parallel_size > 1 for row in protocol.configs
    ):
        yield "server.command: a configuration has several ranks, but ${TP} is not used"


def _flags(row: Config, words: Sequence[str]) -> Iterator[str]:
    """A flag of a configuration gives the value that must be effective, and only once."""
    for flag, value in pairwise([*row.flags, ""]):
        name = _VALUE_FLAGS.get(flag)
        if name is not None and value != str(getattr(row, name)):
            yield f"configs.{row.id}.flags: {flag} {value}, but {name} is {getattr(row, name)}"
        if flag.startswith("--") and flag in words:
            yield f"configs.{row.id}.flags: {flag} stands in server.command as well"


def _manifest(row: Pattern, protocol: ProtocolFile) -> Iterator[str]:
    """The generator's command makes the row that it stands in."""
    where = f"patterns.{row.id}"
    try:
        words = shlex.split(row.manifest)
    except ValueError as error:
        yield f"{where}.manifest: {error}"
        return
    if words[:1] not in (["materialize"], ["materialize-private"]):
        yield f"{where}.manifest: is no materialize or materialize-private"
        return
    given = dict(pairwise(words))
    wanted = {
        "--id": row.id,
        "--arrival": row.arrival,
        "--num-requests": str(protocol.workload.num_requests),
        "--workload-seed": str(protocol.seeds.workload),
    }
    for flag, value in wanted.items():
        found = given.get(flag, value)
        if found != value:
            yield f"{where}.manifest: {flag} {found}, the protocol has {value}"
    for key, made in _made_by(words[0], given).items():
        if getattr(row, key) != made:
            yield f"{where}.{key}: {getattr(row, key)}, its manifest's command makes {made}"


def _made_by(command: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the classes that a row with this manifest command has; ``?`` for a missing flag."""

    def of(flag: str) -> str:
        return given.get(flag, "?")

    if command == "materialize-private":
        return {
            "input": f"trace:max:{of('--max-input-tokens')}",
            "output": f"trace-capped:{of('--output-cap')}",
            "prefix": "natural",
        }
    output = f"fixed:{of('--output-fixed')}"
    if given.get("--kind") == "prefix-pool":
        pool = f"{of('--num-prefixes')}:{of('--prefix-len')}+{of('--suffix-fixed')}"
        return {"input": f"prefix-pool:{pool}", "output": output, "prefix": "high"}
    if "--input-mixture" in given:
        lengths = f"mixture:{_mixture(given['--input-mixture'])}"
    elif "--input-fixed" in given:
        lengths = f"fixed:{given['--input-fixed']}"
    else:
        lengths = f"uniform:{of('--input-uniform')}"
    return {"input": lengths, "output": output, "prefix": "none"}


def _mixture(text: str) -> str:
    try:
        modes = json.loads(text)
    except ValueError:
        return "?"
    if not isinstance(modes, dict):
        return "?"
    return ",".join(f"{mode}={weight}" for mode, weight in modes.items())
