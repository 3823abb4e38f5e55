"""A headless Chromium over its debugging pipe, with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_S = 120.0


class Tab:
    """One page: sends commands, keeps what the page said on its console."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._next, self._pending = 0, b""
        self.session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._next:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, path: Path, width: int = 1360, height: int = 900, scheme: str = "light") -> None:
        """Open a local file and wait until the report says that it is ready."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.scheme(scheme)
        self.console.clear()
        self.requests.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement?.dataset.state === 'ready'")

    def size(self, width: int, height: int) -> None:
        """Set the window's size in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def until(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never held: {condition}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press one key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key, code=f"Key{key}")

    def scheme(self, name: str) -> None:
        """Prefer ``light`` or ``dark``."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the view or of the whole page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """Print the page to A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69}
        printed = self.call("Page.printToPDF", printBackground=False, **paper)
        path.write_bytes(base64.b64decode(printed["data"]))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._from], [], [], deadline - time.monotonic())
            assert ready, "Chromium does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "Chromium has ended"
            self._pending += data
        raw, self._pending = self._pending.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.console.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.console.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """Start a browser with an empty profile and yield a blank page; the browser is ended after."""
    assert BINARY is not None
    browser_in, to_browser = os.pipe()
    from_browser, browser_out = os.pipe()

    def wire() -> None:
        # The debugging pipe is fixed to descriptors 3 and 4; the copies avoid overwriting.
        reader, writer = os.dup(browser_in), os.dup(browser_out)
        os.dup2(reader, 3)
        os.dup2(writer, 4)

    process = subprocess.Popen(
        [BINARY, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=wire,
        pass_fds=(3, 4, browser_in, browser_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_in)
    os.close(browser_out)
    page = Tab(to_browser, from_browser)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
        page.session = attached["sessionId"]
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
