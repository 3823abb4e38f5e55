"""The floor: a raw uvloop client that parses nothing. No peer; it shows what mock + machine allow.

  closed CONNECTIONS SECONDS OUTPUT_TOKENS
  rate   REQUESTS_PER_S SECONDS OUTPUT_TOKENS
  burst  SIZE PERIOD_S SECONDS OUTPUT_TOKENS

Prints one JSON line. The port is the first argument.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

_END = b"0\r\n\r\n"


def request_bytes(output_tokens: int, prompt_tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": "mock",
            "prompt": list(range(100, 100 + prompt_tokens)),
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: floor\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


class FloorConnection(asyncio.Protocol):
    """Looks only for the last five bytes of an answer."""

    def __init__(self, done: Callable[[FloorConnection], None]) -> None:
        self._done = done
        self._tail = b""
        self.busy = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, data: bytes) -> None:
        self.busy, self._tail = True, b""
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        tail = self._tail + data
        if tail.endswith(_END):
            self.busy = False
            self._done(self)
        else:
            self._tail = tail[-4:]


async def closed(port: int, connections: int, seconds: float, tokens: int) -> dict[str, float]:
    data, count, stop = request_bytes(tokens, 128), 0, 0.0

    def done(connection: FloorConnection) -> None:
        nonlocal count
        count += 1
        if time.monotonic() < stop:
            connection.send(data)

    pool = [await connect(port, done) for _ in range(connections)]
    start = time.monotonic()
    stop = start + seconds
    used = time.process_time()
    for connection in pool:
        connection.send(data)
    while any(connection.busy for connection in pool):
        await asyncio.sleep(0.01)
    wall, used = time.monotonic() - start, time.process_time() - used
    return {"requests": count, "rps": count / wall, "cpu_s_per_1000": used / count * 1000}


async def opened(
    port: int, size: int, period_s: float, seconds: float, tokens: int
) -> dict[str, float]:
    data, free, lags = request_bytes(tokens, 128), [], []
    free += [await connect(port, lambda c: free.append(c)) for _ in range(256)]
    start = time.monotonic() + 0.2
    for k in range(int(seconds / period_s)):
        due = start + k * period_s
        if due - time.monotonic() > 0.0015:
            await asyncio.sleep(due - time.monotonic() - 0.001)
        while time.monotonic() < due:
            await asyncio.sleep(0)
        lags.append(time.monotonic() - due)
        for _ in range(size):
            free.pop().send(data)
    await asyncio.sleep(0.5)
    lags.sort()
    return {"own_lag_p50_ms": lags[len(lags) // 2] * 1e3}


async def connect(port: int, done: Callable[[FloorConnection], None]) -> FloorConnection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: FloorConnection(done), "127.0.0.1", port)
    return connection


async def main(port: str, mode: str, *values: str) -> None:
    numbers = [float(value) for value in values]
    if mode == "closed":
        result = await closed(int(port), int(numbers[0]), numbers[1], int(numbers[2]))
    elif mode == "rate":
        result = await opened(int(port), 1, 1 / numbers[0], numbers[1], int(numbers[2]))
    else:
        result = await opened(int(port), int(numbers[0]), numbers[1], numbers[2], int(numbers[3]))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result["rss_mb"] = usage.ru_maxrss / 1024
    print(json.dumps(result))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
