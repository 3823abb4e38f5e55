"""Kernel name and scopes to operator family: first match wins.

Pure: no files, no steps, no patterns of traffic. Every unique pair is searched once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from opprof.mapping.families import FAMILY_PRIORITY, OTHER

MEMO_LIMIT = 1 << 16
"""Unique names, and (name, scopes) pairs, that a table remembers before it forgets them all."""


class CompiledRule(Struct, frozen=True):
    """A rule with its sets expanded; every tuple holds regular expressions without groups."""

    id: str
    family: str
    priority: int
    names: tuple[str, ...]
    scopes: tuple[str, ...]
    except_names: tuple[str, ...]
    except_scopes: tuple[str, ...]


class RuleHit(Struct, frozen=True, forbid_unknown_fields=True):
    """Which rule a kernel hits, and by what."""

    family: str
    priority: int
    rule: str | None
    """null for the fallthrough ``other``."""
    name_pattern: str | None = None
    name_match: str | None = None
    """The part of the name that the pattern found."""
    scope_pattern: str | None = None
    scope_match: str | None = None
    """The scope that hit, outermost first."""


class _AnyOf:
    """Whether any of a rule's patterns is found in a text that has been lowered.

    Most patterns are plain words, and ``word in text`` is ten times as fast as a regular expression
    that ignores case; the rest is one alternation over the lowered text. It answers as
    ``re.search(pattern, text, re.IGNORECASE)`` does for ASCII names, which a property test holds.
    """

    __slots__ = ("_regex", "_words")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        lowered = [_lower_pattern(pattern) for pattern in patterns]
        self._words = tuple(text for text in lowered if is_plain(text))
        rest = [f"(?:{text})" for text in lowered if not is_plain(text)]
        self._regex = re.compile("|".join(rest), re.IGNORECASE * _any_coded(rest)) if rest else None

    def __call__(self, lowered: str) -> bool:
        for word in self._words:
            if word in lowered:
                return True
        return self._regex is not None and self._regex.search(lowered) is not None


_PLAIN = re.compile(r"[A-Za-z0-9_:<>,= /-]+")
_ESCAPE_OR_CHARACTER = re.compile(r"\\.|.", re.DOTALL)


def is_plain(pattern: str) -> bool:
    """True when a pattern means its own letters: nothing in it is special to ``re``."""
    return _PLAIN.fullmatch(pattern) is not None


def _lower_pattern(pattern: str) -> str:
    """Return the pattern with its letters lowered and its escapes (\\W, \\S ...) left alone."""
    return _ESCAPE_OR_CHARACTER.sub(
        lambda part: part.group() if part.group().startswith("\\") else part.group().lower(),
        pattern,
    )


def _any_coded(patterns: list[str]) -> bool:
    """True when a character is written by its code, which lowering cannot see."""
    return any(re.search(r"\\[xuUN0-7]", pattern) for pattern in patterns)


class _Matcher(NamedTuple):
    rule: CompiledRule
    name: _AnyOf | None
    scope: _AnyOf | None
    except_name: _AnyOf | None
    except_scope: _AnyOf | None


class MappingTable:
    """A compiled table; immutable but for its memory of what it has classified."""

    __slots__ = (
        "_candidates",
        "_matchers",
        "_memo",
        "memo_resets",
        "rules",
        "sha256",
        "title",
        "version",
    )

    def __init__(
        self, version: str, sha256: str, title: str, rules: tuple[CompiledRule, ...]
    ) -> None:
        """Compile the rules, which must be in order of priority (see ``table.parse_table``)."""
        self.version = version
        self.sha256 = sha256
        self.title = title
        self.rules = rules
        self.memo_resets = 0
        self._memo: dict[tuple[str, tuple[str, ...]], str] = {}
        # Scopes vary far more than names do (annotations carry token counts): rules by name alone.
        self._candidates: dict[str, tuple[_Matcher, ...]] = {}
        self._matchers = tuple(
            _Matcher(
                rule,
                _any_of(rule.names),
                _any_of(rule.scopes),
                _any_of(rule.except_names),
                _any_of(rule.except_scopes),
            )
            for rule in rules
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Runs are analysed in parallel processes; patterns compile again on the other side.
        return (MappingTable, (self.version, self.sha256, self.title, self.rules))

    def __repr__(self) -> str:
        return f"MappingTable({self.version!r}, {len(self.rules)} rules, {self.sha256[:12]})"

    def classify(self, name: str, scopes: tuple[str, ...] = ()) -> str:
        """Return the family of a kernel.

        ``scopes``: the CPU ops and module annotations around its launch, outermost first; empty
        for a kernel inside a graph replay. The answer does not depend on their order.
        """
        key = (name, scopes)
        family = self._memo.get(key)
        if family is None:
            matcher = self._first(name, scopes)
            family = OTHER if matcher is None else matcher.rule.family
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
                self.memo_resets += 1
            self._memo[key] = family
        return family

    def explain(self, name: str, scopes: Sequence[str] = ()) -> RuleHit:
        """Return the rule that a kernel hits and what it was recognised by."""
        matcher = self._first(name, tuple(scopes))
        if matcher is None:
            return RuleHit(family=OTHER, priority=FAMILY_PRIORITY[OTHER], rule=None)
        rule = matcher.rule
        name_pattern, name_match = _found(rule.names, [name])
        scope_pattern, scope_match = _found(rule.scopes, scopes, whole=True)
        return RuleHit(
            family=rule.family,
            priority=rule.priority,
            rule=rule.id,
            name_pattern=name_pattern,
            name_match=name_match,
            scope_pattern=scope_pattern,
            scope_match=scope_match,
        )

    def _first(self, name: str, scopes: tuple[str, ...]) -> _Matcher | None:
        candidates = self._candidates.get(name)
        if candidates is None:
            lowered = name.lower()
            candidates = tuple(rule for rule in self._matchers if _name_hits(rule, lowered))
            if len(self._candidates) >= MEMO_LIMIT:
                self._candidates.clear()
                self.memo_resets += 1
            self._candidates[name] = candidates
        for matcher in candidates:
            if _scopes_hit(matcher, scopes):
                return matcher
        return None


def _name_hits(matcher: _Matcher, lowered: str) -> bool:
    if matcher.name is not None and not matcher.name(lowered):
        return False
    return matcher.except_name is None or not matcher.except_name(lowered)


def _scopes_hit(matcher: _Matcher, scopes: tuple[str, ...]) -> bool:
    if matcher.scope is None and matcher.except_scope is None:
        return True
    lowered = [scope.lower() for scope in scopes]
    if matcher.scope is not None and not any(map(matcher.scope, lowered)):
        return False
    return matcher.except_scope is None or not any(map(matcher.except_scope, lowered))


def _any_of(patterns: tuple[str, ...]) -> _AnyOf | None:
    return _AnyOf(patterns) if patterns else None


def _found(
    patterns: tuple[str, ...], texts: Sequence[str], *, whole: bool = False
) -> tuple[str | None, str | None]:
    """Return the first pattern with a hit, and what it hit."""
    for pattern in patterns:
        for text in texts:
            match = re.search(pattern, text, re.IGNORECASE)
            if match is not None:
                return pattern, text if whole else match.group()
    return None, None
