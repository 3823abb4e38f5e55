"""The server's address, secrets and the bytes of a request.

Secrets (API key, extra headers) live only in :class:`Endpoint` and the wire: their ``repr`` hides
them and no message quotes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from opprof._version import __version__
from opprof.client.ports import RequestSpec
from opprof.errors import InputError

KEY_VARIABLES = ("OPPROF_API_KEY", "OPENAI_API_KEY")
HEADERS_VARIABLE = "OPPROF_HEADERS"
"""Extra headers, one ``Name: value`` a line."""

_OWN_HEADERS = frozenset({"host", "content-length", "content-type", "transfer-encoding"})


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server."""

    host: str
    port: int
    tls: bool
    prefix: str
    """Path before ``/v1`` and ``/start_profile``; empty or ``/like/this``."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def head(self, method: str, path: str) -> bytes:
        """Return the request head up to and including the extra headers, without a body length."""
        default_port = 443 if self.tls else 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        host = name if self.port == default_port else f"{name}:{self.port}"
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {host}",
            f"User-Agent: opprof/{__version__}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"

    @property
    def url(self) -> str:
        """Address without secrets, for messages."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}{self.prefix}"


def parse_endpoint(
    base_url: str, headers: Iterable[str], environment: Mapping[str, str] = os.environ
) -> Endpoint:
    """Read ``--base-url``, ``--header`` values and the environment's key and headers.

    Raises:
        InputError: the URL or a header cannot be used (a header's value is never quoted).
    """
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError as error:
        raise InputError("--base-url: host or port cannot be read (0 < port < 65536)") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--base-url must look like http://HOST:PORT")
    if parts.username or parts.password:
        raise InputError(f"--base-url must not hold a secret; give it in ${KEY_VARIABLES[0]}")
    if parts.query or parts.fragment:
        raise InputError("--base-url must not have a query or fragment")
    if port == 0 or not _usable(parts.hostname, parts.path):
        raise InputError("--base-url: host, port or path cannot be used in a request")
    tls = parts.scheme == "https"
    lines = [line for line in environment.get(HEADERS_VARIABLE, "").splitlines() if line.strip()]
    chosen = [_header(text, "$" + HEADERS_VARIABLE) for text in lines]
    chosen += [_header(text, "--header") for text in headers]
    key = next((environment[name] for name in KEY_VARIABLES if environment.get(name)), None)
    if key is not None and not any(name.lower() == "authorization" for name, _ in chosen):
        chosen.append(_header(f"Authorization: Bearer {key}", "the API key's variable"))
    return Endpoint(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        headers=tuple(chosen),
    )


def _usable(host: str, path: str) -> bool:
    """Tell whether host and path can stand in a request line and in a look-up as they are."""
    if not all(32 < ord(letter) < 127 for letter in host + path):
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _header(text: str, source: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    name, value = name.strip(), value.strip()
    plain = name.replace("-", "").replace("_", "")
    if not separator or not plain.isascii() or not plain.isalnum():
        raise InputError(f"{source}: a header must look like 'Name: value'")
    if name.lower() in _OWN_HEADERS:
        raise InputError(f"{source}: the header {name} is set by the client")
    if any(ord(letter) < 32 or ord(letter) > 255 for letter in value):
        raise InputError(f"{source}: the value of {name} holds a character no header may hold")
    return name, value


class RequestEncoder:
    """Makes the bytes of a completions request around the manifest's own prompt bytes."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        head = endpoint.head("POST", "/v1/completions")
        head += b"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: "
        self._head = head
        self._before = b'{"model":' + msgspec.json.encode(model) + b',"prompt":'
        self._after = (
            b',"temperature":0,"ignore_eos":true,"stream":true,'
            b'"stream_options":{"include_usage":true},"max_tokens":'
        )

    def encode(self, spec: RequestSpec) -> bytes:
        """Return the whole request: head, body; greedy, exact output length, streamed usage."""
        tail = self._after + b"%d}" % spec.output_tokens
        length = len(self._before) + len(spec.prompt_json) + len(tail)
        return b"".join((self._head, b"%d\r\n\r\n" % length, self._before, spec.prompt_json, tail))
