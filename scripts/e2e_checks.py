"""Counts and prints what end-to-end checks find."""

from __future__ import annotations


class Checks:
    """Counts what held and what did not."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def that(self, good: bool, text: str) -> bool:
        """Count and print one check, and return it."""
        self.passed += good
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)
        return good
