"""Small request records for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def record(request_id: int | str, **changes: Any) -> dict[str, Any]:
    """A right answer of four tokens: scheduled 0, sent 10, first token 20, whole at 30."""
    found: dict[str, Any] = {
        "request_id": request_id,
        "scheduled_mono_ns": 0,
        "admitted_mono_ns": 10,
        "first_token_mono_ns": 20,
        "completed_mono_ns": 30,
        "prompt_tokens": 100,
        "requested_output_tokens": 4,
        "output_tokens": 4,
        "http_status": 200,
    }
    return found | changes


def write_requests(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """Write ``requests.jsonl`` and return its path."""
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(found) + "\n" for found in records))
    return path
