"""Looks at the server before any load: reachable, right model, profile endpoints there.

The profile endpoints can only be tried by calling them, and a call starts the profiler. What can be
known without a side effect is asked for: the server's OpenAPI document lists its routes (vLLM
serves it); else a server that answers 405 to ``OPTIONS`` on a route it has and 404 on one it lacks
has told enough. Where neither speaks, the first call decides and its failure ends the run.
"""

from __future__ import annotations

import asyncio

import msgspec

from opprof.client.endpoint import KEY_VARIABLES, Endpoint
from opprof.client.http import fetch
from opprof.client.response import BadResponse
from opprof.errors import EnvironmentFailure

_COMPLETIONS = "/v1/completions"
PROFILE_PATHS = ("/start_profile", "/stop_profile")
_ANSWER_WITHIN_S = 30.0
"""A server that leaves a look unanswered for so long cannot take a run."""


SIMULATED_OWNER = "opprof-sim"
"""``owned_by`` of the embedded engine's model; a real vLLM says ``vllm``."""


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


class _OpenApi(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


async def check_server(endpoint: Endpoint, model: str, *, profile: bool) -> bool:
    """Check that the server can take the run; return whether it says that it is simulated.

    Raises:
        EnvironmentFailure: it is unreachable, refuses the key, does not serve the model, or is
            known to lack the profile endpoints.
    """
    simulated = False
    status, body = await _fetch(endpoint, "GET", "/v1/models")
    if status in (401, 403):
        raise EnvironmentFailure(
            f"{endpoint.url} answers {status}: give its API key in ${KEY_VARIABLES[0]}"
        )
    if status == 200:
        simulated = _check_model(endpoint, body, model)
    elif 300 <= status < 400:
        raise EnvironmentFailure(f"{endpoint.url} answers {status}: give the address it leads to")
    elif status >= 500:
        raise EnvironmentFailure(f"{endpoint.url} answers {status}: it is not ready")
    if profile:
        await _check_profile(endpoint)
    return simulated


def _check_model(endpoint: Endpoint, body: bytes, model: str) -> bool:
    try:
        found = msgspec.json.decode(body, type=_Models).data
    except (msgspec.MsgspecError, RecursionError):
        return False
    served = [each.id for each in found]
    if model not in served:
        raise EnvironmentFailure(f"{endpoint.url} serves {', '.join(served)}, not {model}")
    return any(each.owned_by == SIMULATED_OWNER for each in found)


async def _check_profile(endpoint: Endpoint) -> None:
    missing = [path for path in PROFILE_PATHS if await _is_missing(endpoint, path)]
    if missing:
        raise EnvironmentFailure(
            f"{endpoint.url} has no {' and no '.join(missing)} (404): start the server with "
            "--profiler-config"
        )


async def _is_missing(endpoint: Endpoint, path: str) -> bool:
    status, body = await _fetch(endpoint, "GET", "/openapi.json")
    if status == 200:
        try:
            paths = msgspec.json.decode(body, type=_OpenApi).paths
        except (msgspec.MsgspecError, RecursionError):
            paths = {}
        if _COMPLETIONS in paths:
            return path not in paths
    known, _ = await _fetch(endpoint, "OPTIONS", _COMPLETIONS)
    if known != 405:
        return False
    status, _ = await _fetch(endpoint, "OPTIONS", path)
    return status == 404


async def _fetch(endpoint: Endpoint, method: str, path: str) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await fetch(endpoint, method, path)
    except TimeoutError as error:
        raise EnvironmentFailure(
            f"{endpoint.url}{path} gave no answer within {_ANSWER_WITHIN_S:g} s"
        ) from error
    except (OSError, BadResponse) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise EnvironmentFailure(f"no HTTP server at {endpoint.url}: {reason}") from error
