"""Proof that a table says what it means: every example reaches its rule, no rule is shadowed."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from opprof.mapping.classify import CompiledRule, MappingTable
from opprof.mapping.table import LoadedTable, Rule, load_table_file

PYTHON_FRAMES: tuple[str, ...] = (
    "vllm/model_executor/models/qwen3_moe.py(415): forward",
    "vllm/model_executor/layers/fused_moe/layer.py(1800): forward",
    "vllm/attention/layer.py(300): unified_attention_with_output",
    "nn.Module: Qwen3MoeForCausalLM_0",
    "nn.Module: Qwen3MoeAttention_7",
)
"""Texts that enclose nearly every launch; a scope pattern that hits one judges by a file's name."""


class Finding(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is wrong with a table, or worth a look."""

    level: str
    """``error`` or ``warning``."""
    rule: str | None
    message: str


class ExampleHit(Struct, frozen=True, forbid_unknown_fields=True):
    """Where an example of a rule went."""

    name: str
    scopes: list[str]
    rule: str | None
    family: str
    ok: bool


class RuleReport(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule and its examples."""

    id: str
    family: str
    priority: int
    examples: list[ExampleHit]


class CheckReport(Struct, frozen=True, forbid_unknown_fields=True):
    """The verdict on a table."""

    source: str
    version: str
    sha256: str
    title: str
    ok: bool
    """No finding of level ``error``."""
    rules: list[RuleReport]
    unmatched: int
    """Documented names that no rule may catch."""
    findings: list[Finding]


def check_table(which: str | Path) -> CheckReport:
    """Load a table and prove its examples.

    Raises:
        InputError: the table cannot be used at all (see ``table.load_table``).
    """
    return check_loaded(load_table_file(which))


def check_loaded(loaded: LoadedTable) -> CheckReport:
    """Prove the examples of a loaded table; see :class:`Finding` for what is looked at."""
    table = loaded.table
    rules: list[RuleReport] = []
    findings: list[Finding] = []
    for rule, compiled in zip(loaded.file.rules, table.rules, strict=True):
        report = _run_examples(table, rule)
        rules.append(report)
        findings += _example_findings(report)
        findings += _pattern_findings(rule, compiled)
    findings += _set_findings(loaded)
    for entry in loaded.file.unmatched:
        hit = table.explain(entry.name, entry.scopes)
        if hit.rule is not None:
            text = f"unmatched name {_short(entry.name)!r} is caught as {hit.family}"
            findings.append(Finding(level="error", rule=hit.rule, message=text))
    findings += _contradictions(loaded)
    return CheckReport(
        source=loaded.source,
        version=loaded.file.version,
        sha256=loaded.sha256,
        title=loaded.file.title,
        ok=not any(finding.level == "error" for finding in findings),
        rules=rules,
        unmatched=len(loaded.file.unmatched),
        findings=findings,
    )


def _run_examples(table: MappingTable, rule: Rule) -> RuleReport:
    hits = []
    for example in rule.examples:
        hit = table.explain(example.name, example.scopes)
        hits.append(
            ExampleHit(
                name=example.name,
                scopes=example.scopes,
                rule=hit.rule,
                family=hit.family,
                ok=hit.rule == rule.id,
            )
        )
    return RuleReport(id=rule.id, family=rule.family, priority=rule.priority, examples=hits)


def _example_findings(report: RuleReport) -> list[Finding]:
    findings = [
        Finding(
            level="error",
            rule=report.id,
            message=f"example {_short(hit.name)!r} reaches {hit.rule or 'no rule'} ({hit.family})",
        )
        for hit in report.examples
        if not hit.ok
    ]
    if not report.examples:
        findings.append(Finding(level="error", rule=report.id, message="has no example"))
    elif not any(hit.ok for hit in report.examples):
        text = "is shadowed: no example reaches it"
        findings.append(Finding(level="error", rule=report.id, message=text))
    return findings


def _pattern_findings(rule: Rule, compiled: CompiledRule) -> list[Finding]:
    """Patterns that hit nothing, everything, or a Python file."""
    findings: list[Finding] = []
    for pattern in compiled.names + compiled.scopes:
        if re.search(pattern, "") is not None:
            text = f"pattern {pattern!r} matches the empty string, hence every name"
            findings.append(Finding(level="warning", rule=rule.id, message=text))
    for pattern in compiled.scopes:
        caught = [frame for frame in PYTHON_FRAMES if re.search(pattern, frame, re.IGNORECASE)]
        if caught:
            text = f"scope pattern {pattern!r} matches {caught[0]!r}, which encloses every launch"
            findings.append(Finding(level="error", rule=rule.id, message=text))
    names = [example.name for example in rule.examples]
    scopes = [scope for example in rule.examples for scope in example.scopes]
    for patterns, texts in ((rule.names, names), (rule.scopes, scopes)):
        for pattern in patterns:
            if not pattern.startswith("@") and not _any_hit(pattern, texts):
                text = f"pattern {pattern!r} has no example"
                findings.append(Finding(level="warning", rule=rule.id, message=text))
    return findings


def _set_findings(loaded: LoadedTable) -> list[Finding]:
    """A set must be used, and each of its patterns must have an example in some rule."""
    findings: list[Finding] = []
    for name, patterns in loaded.file.sets.items():
        reference = f"@{name}"
        texts: list[str] = []
        used = False
        for rule in loaded.file.rules:
            if reference in rule.names:
                texts += [example.name for example in rule.examples]
            if reference in rule.scopes:
                texts += [scope for example in rule.examples for scope in example.scopes]
            used = used or reference in (
                *rule.names, *rule.scopes, *rule.except_names, *rule.except_scopes
            )  # fmt: skip
        if not used:
            findings.append(Finding(level="warning", rule=None, message=f"set {name!r} is unused"))
        for pattern in patterns:
            if texts and not _any_hit(pattern, texts):
                text = f"pattern {pattern!r} of set {name!r} has no example"
                findings.append(Finding(level="warning", rule=None, message=text))
    return findings


def _contradictions(loaded: LoadedTable) -> list[Finding]:
    """The same name and scopes cannot be an example of two rules."""
    seen: dict[tuple[str, tuple[str, ...]], str] = {}
    findings: list[Finding] = []
    for rule in loaded.file.rules:
        for example in rule.examples:
            key = (example.name, tuple(example.scopes))
            other = seen.setdefault(key, rule.id)
            if other != rule.id:
                text = f"example {_short(example.name)!r} is also one of {other}"
                findings.append(Finding(level="error", rule=rule.id, message=text))
    return findings


def _any_hit(pattern: str, texts: list[str]) -> bool:
    compiled = re.compile(pattern, re.IGNORECASE)
    return any(compiled.search(text) for text in texts)


def _short(name: str, limit: int = 80) -> str:
    return name if len(name) <= limit else name[: limit - 3] + "..."
