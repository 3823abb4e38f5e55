"""The response reader: exact framing under any split, and only the end is decoded."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opprof.client.response import BadResponse, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str = " the", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def usage(prompt: int, output: int) -> bytes:
    numbers = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": 0}
    return event({"choices": [], "usage": numbers})


DONE = b"data: [DONE]\n\n"


def chunks(*payloads: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in payloads) + b"0\r\n\r\n"


def stream(tokens: int = 5, text: str = " the") -> bytes:
    body = [token(text)] * (tokens - 1) + [token(text, "length"), usage(7, tokens), DONE]
    return HEAD + chunks(*body)


def read(data: bytes, cuts: list[int]) -> tuple[ResponseReader, list[bool]]:
    reader = ResponseReader()
    borders = [0, *sorted({cut % len(data) for cut in cuts}), len(data)]
    done = [reader.feed(data[a:b]) for a, b in pairwise(borders) if a < b]
    return reader, done


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 60))
def test_any_split_of_the_bytes_reads_the_same(cuts: list[int], tokens: int) -> None:
    reader, done = read(stream(tokens), cuts)
    assert done[-1] and not any(done[:-1])
    end = reader.stream_end()
    assert (end.prompt_tokens, end.output_tokens) == (7, tokens)
    assert (end.finish_reason, end.error) == ("length", None)
    assert reader.status == 200 and reader.reusable and reader.event_seen


def test_byte_by_byte() -> None:
    data = stream(300)
    reader, done = read(data, list(range(len(data))))
    assert done[-1] and reader.stream_end().output_tokens == 300


def test_the_first_event_is_seen_when_it_begins_and_not_before() -> None:
    reader = ResponseReader()
    first = token()
    reader.feed(HEAD)
    assert not reader.event_seen
    ping = b": ping\n\n"
    reader.feed(b"%x\r\n%s\r\n" % (len(ping), ping))
    assert not reader.event_seen
    reader.feed(b"%x\r\n%s\r\n" % (len(first), first))
    assert reader.event_seen


def test_events_that_lie_across_chunks_are_read() -> None:
    whole = token() * 3 + token(finish="length") + usage(11, 4) + DONE
    pieces = [whole[i : i + 7] for i in range(0, len(whole), 7)]
    reader, _ = read(HEAD + chunks(*pieces), [])
    end = reader.stream_end()
    assert (end.prompt_tokens, end.output_tokens, end.finish_reason) == (11, 4, "length")


def test_several_events_in_one_chunk_are_read() -> None:
    reader, _ = read(HEAD + chunks(token() + token(finish="length") + usage(3, 2) + DONE), [])
    assert reader.stream_end().output_tokens == 2


@pytest.mark.parametrize(
    "text", ["data: [DONE]", 'data: {"usage"', "\n\ndata: [DONE]\n\n", "0\r\n\r\n"]
)
def test_generated_text_cannot_pass_for_an_event_or_an_end(text: str) -> None:
    reader, done = read(stream(9, text), [])
    assert done == [True] and reader.stream_end().output_tokens == 9
    without_end = HEAD + chunks(token(text), usage(1, 1))
    reader, _ = read(without_end, [])
    assert reader.stream_end().error == "no_done"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([token(), DONE], "no_usage"),
        ([token(finish="length"), usage(1, 1)], "no_done"),
        ([token(), event({"error": {"message": "x"}}), DONE], "stream_error"),
        ([b"data: {broken\n\n", DONE], "bad_event"),
        ([usage(-1, 4), DONE], "bad_event"),
        ([usage(10**30, 4), DONE], "bad_event"),
        ([b'data: {"choices":[{"finish_reason":"\xff"}]}\n\n', DONE], "bad_event"),
        ([b'data: {"error":' + b'{"a":' * 3000 + b"1" + b"}" * 3001 + b"\n\n", DONE], "bad_event"),
    ],
)
def test_incomplete_streams_have_a_reason_code(body: list[bytes], error: str) -> None:
    reader, _ = read(HEAD + chunks(*body), [])
    assert reader.stream_end().error == error


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("field", [b"data:", b"data: "])
def test_every_spelling_of_an_event_stream(field: bytes, line_end: bytes) -> None:
    events = [
        b": ping\n\n",
        token(),
        b"event: x\nid: 1\n" + token(finish="length"),
        usage(7, 2),
        DONE,
    ]
    body = [e.replace(b"data: ", field).replace(b"\n", line_end) for e in events]
    reader, done = read(HEAD + chunks(*body), [])
    assert done[-1]
    end = reader.stream_end()
    assert (end.prompt_tokens, end.output_tokens, end.finish_reason, end.error) == (
        7,
        2,
        "length",
        None,
    )


def test_the_tail_is_bounded() -> None:
    reader = ResponseReader()
    reader.feed(HEAD)
    piece = token()
    for _ in range(5000):
        reader.feed(b"%x\r\n%s\r\n" % (len(piece), piece))
    assert sum(len(p) for p in reader._pieces) < 20_000


@given(st.lists(st.integers(0, 10**6), max_size=10))
def test_a_body_with_a_length(cuts: list[int]) -> None:
    body = b'{"error":{"message":"no"}}'
    data = b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    reader, done = read(data, cuts)
    assert done[-1] and reader.status == 500 and reader.body() == body and reader.reusable


def test_informational_responses_are_skipped() -> None:
    reader, done = read(b"HTTP/1.1 100 Continue\r\n\r\n" + stream(3), [])
    assert done[-1] and reader.status == 200


def test_trailers_and_chunk_extensions() -> None:
    body = b"".join(b"%x;name=1\r\n%s\r\n" % (len(p), p) for p in (token(), usage(1, 1), DONE))
    reader, done = read(HEAD + body + b"0\r\nx-trailer: 1\r\n\r\n", [5, 200])
    assert done[-1] and reader.stream_end().output_tokens == 1


def test_a_body_until_close() -> None:
    reader = ResponseReader()
    assert not reader.feed(b"HTTP/1.0 200 OK\r\n\r\n" + token(finish="length") + usage(2, 1) + DONE)
    assert reader.eof() and not reader.reusable
    assert reader.stream_end().output_tokens == 1


def test_a_cut_stream_is_not_complete() -> None:
    reader = ResponseReader()
    assert not reader.feed(stream(5)[:-9])
    assert not reader.eof()


def test_connection_close_is_honoured() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", [])
    assert not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        HEAD + b"xyz\r\n",
        HEAD + b"-5\r\nabcde\r\n",
        HEAD + b"a" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"x" * 70_000,
        b"SSH-2.0-OpenSSH_9 waits for an answer\r\n",
        b"\x15\x03\x01\x00\x02",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
    ],
)
def test_bytes_that_are_no_response_are_refused_without_quoting_them(data: bytes) -> None:
    with pytest.raises(BadResponse) as caught:
        ResponseReader().feed(data)
    assert "SSH" not in str(caught.value)
