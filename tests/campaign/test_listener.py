"""A port belongs to the process that listens on it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from opprof.campaign import server
from opprof.campaign.listener import holder, listening_inodes, listens
from opprof.campaign.options import Options
from opprof.errors import EnvironmentFailure


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_only_the_holder_of_the_listening_socket_listens(family: socket.AddressFamily) -> None:
    with socket.socket(family) as owner:
        owner.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        port = owner.getsockname()[1]
        assert not listens(port, [os.getpid()])
        owner.listen()
        assert listens(port, [os.getpid()])
        assert holder(port).startswith(f"pid {os.getpid()} (")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            assert not listens(port, [other.pid])
            other.kill()
    assert not listening_inodes(port)
    assert holder(port) == ""


def test_health_of_another_process_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def healthy(*_arguments: object) -> tuple[int, bytes]:
        return 200, b""

    monkeypatch.setattr(server, "fetch", healthy)
    child = SimpleNamespace(
        process=SimpleNamespace(returncode=None), record=SimpleNamespace(pgid=os.getpgid(0))
    )
    log = tmp_path / "server.log"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        asyncio.run(server.wait_healthy(child, port, Options(), log))  # type: ignore[arg-type]
        child.record.pgid = 1 << 30
        with pytest.raises(EnvironmentFailure, match="another process listens"):
            asyncio.run(server.wait_healthy(child, port, Options(), log))  # type: ignore[arg-type]
