"""Which HTTP layer the client stands on: own reader, httptools or aiohttp, same work for each.

Closed loop of 256 against the in-repo mock. Every layer must tell the time of the first token, the
usage, the finish reason and a complete ``[DONE]`` stream; all decode only the end. Each runs in a
process of its own, in turn, ``--rounds`` times, pinned to core 1 (the mock to core 0).

  python bench/client_http_layers.py [--seconds 5] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench_tools import pinned, running_mock

CONCURRENCY, PROMPT, OUTPUT = 256, 128, 64
LAYERS = ("own", "httptools", "aiohttp")


class Tally:
    """Counts complete answers until a time, then lets the loop run out."""

    def __init__(self, seconds: float) -> None:
        self.stop = time.monotonic() + seconds
        self.answers = 0

    def take(self, first_ns: int | None, prompt: int | None, output: int | None) -> bool:
        assert first_ns is not None and (prompt, output) == (PROMPT, OUTPUT)
        self.answers += 1
        return time.monotonic() < self.stop


def body() -> bytes:
    value = {
        "model": "mock",
        "prompt": list(range(100, 100 + PROMPT)),
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(value).encode()


async def own(port: int, tally: Tally) -> None:
    from opprof.client.endpoint import Endpoint
    from opprof.client.http import HttpTransport
    from opprof.client.ports import Outcome, RequestSpec
    from opprof.client.realtime import LoopClock

    loop = asyncio.get_running_loop()
    transport = HttpTransport(loop, LoopClock(loop), Endpoint("127.0.0.1", port, False, ""), "mock")
    spec = RequestSpec(0, json.dumps(list(range(100, 100 + PROMPT))).encode(), PROMPT, OUTPUT)
    prepared, left, ended = transport.prepare(spec), CONCURRENCY, asyncio.Event()

    def done(outcome: Outcome) -> None:
        nonlocal left
        assert outcome.error is None, outcome.error
        if tally.take(outcome.first_token_ns, outcome.prompt_tokens, outcome.output_tokens):
            transport.send(prepared, done)
        else:
            left -= 1
            if left == 0:
                ended.set()

    transport.ready(CONCURRENCY)
    while transport.idle < CONCURRENCY:
        await asyncio.sleep(0.01)
    for _ in range(CONCURRENCY):
        transport.send(prepared, done)
    await ended.wait()


async def httptools_layer(port: int, tally: Tally) -> None:
    import httptools

    from opprof.client.response import _read_end

    loop, data = asyncio.get_running_loop(), body()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
    )
    left, ended = CONCURRENCY, asyncio.Event()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.send()

        def send(self) -> None:
            self.parser = httptools.HttpResponseParser(self)
            self.parts: list[bytes] = []
            self.first: int | None = None
            self.complete = False
            self.transport.write(request)

        def on_body(self, part: bytes) -> None:
            if self.first is None and b"data:" in part:
                self.first = time.monotonic_ns()
            self.parts.append(part)
            if len(self.parts) > 32:
                del self.parts[:16]

        def on_message_complete(self) -> None:
            self.complete = True

        def data_received(self, piece: bytes) -> None:
            nonlocal left
            self.parser.feed_data(piece)
            if self.complete:
                end = _read_end(b"".join(self.parts))
                assert end.error is None
                if tally.take(self.first, end.prompt_tokens, end.output_tokens):
                    self.send()
                else:
                    left -= 1
                    if left == 0:
                        ended.set()

    for _ in range(CONCURRENCY):
        await loop.create_connection(Connection, "127.0.0.1", port)
    await ended.wait()


async def aiohttp_layer(port: int, tally: Tally) -> None:
    import aiohttp

    from opprof.client.response import _read_end

    data, url = body(), f"http://127.0.0.1:{port}/v1/completions"
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            again = True
            while again:
                first, parts = None, []
                async with session.post(url, data=data, headers=headers) as response:
                    async for piece in response.content.iter_any():
                        if first is None and b"data:" in piece:
                            first = time.monotonic_ns()
                        parts.append(piece)
                        if len(parts) > 32:
                            del parts[:16]
                end = _read_end(b"".join(parts))
                assert end.error is None
                again = tally.take(first, end.prompt_tokens, end.output_tokens)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))


def child(layer: str, port: int, seconds: float) -> None:
    import uvloop

    table: dict[str, Callable[[int, Tally], Awaitable[None]]] = {
        "own": own,
        "httptools": httptools_layer,
        "aiohttp": aiohttp_layer,
    }

    async def main() -> None:
        tally = Tally(seconds)
        start, used = time.monotonic(), time.process_time()
        await table[layer](port, tally)
        wall, used = time.monotonic() - start, time.process_time() - used
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            json.dumps(
                {
                    "rps": tally.answers / wall,
                    "cpu_s_per_1000": used / tally.answers * 1000,
                    "cpu_share": used / wall,
                    "rss_mb": rss,
                }
            )
        )

    uvloop.run(main())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]), options.seconds)
        return
    rows: dict[str, list[dict[str, float]]] = {layer: [] for layer in LAYERS}
    with running_mock() as mock:
        for _ in range(options.rounds):
            for layer in LAYERS:
                command = [sys.executable, __file__, "--seconds", str(options.seconds)]
                command += ["--child", layer, str(mock.port)]
                done = subprocess.run(
                    pinned(1, command), capture_output=True, text=True, check=True
                )
                rows[layer].append(json.loads(done.stdout))
    print("layer       requests/s  CPU s per 1,000  CPU share  RSS MB   (medians)")
    for layer, results in rows.items():
        middle = {key: statistics.median(r[key] for r in results) for key in results[0]}
        print(
            f"{layer:<10} {middle['rps']:11.0f} {middle['cpu_s_per_1000']:16.3f}"
            f" {middle['cpu_share']:10.2f} {middle['rss_mb']:7.0f}"
        )


if __name__ == "__main__":
    main()
