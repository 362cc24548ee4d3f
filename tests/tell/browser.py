"""A headless Chromium, controlled by its DevTools protocol; it collects errors of the page."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tornado.websocket import websocket_connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60


def browser_path() -> str | None:
    """Path of the browser's program; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab; a context that ends the browser it started."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="streammiml-browser-")
        self._runner = asyncio.Runner()
        self._number = 0
        self.complaints: list[str] = []
        """Errors and warnings that the page logged, threw or caused."""
        self.requests: list[str] = []
        """Addresses that were asked for."""

    def __enter__(self) -> Browser:
        words = ["--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu"]
        words += ["--remote-allow-origins=*", f"--user-data-dir={self._folder.name}"]
        # A container's root may not make sandboxes; the page is our own.
        words += ["--no-sandbox", "--disable-dev-shm-usage", "about:blank"]
        self._process = subprocess.Popen(
            [str(browser_path()), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._socket = self._runner.run(self._connected())
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._runner.close()
        # The browser's own children may still be writing.
        shutil.rmtree(self._folder.name, ignore_errors=True)
        self._folder._finalizer.detach()  # type: ignore[attr-defined]

    async def _connected(self) -> Any:
        port = Path(self._folder.name) / "DevToolsActivePort"
        end = time.monotonic() + SECONDS
        while not (port.exists() and port.read_text().strip()):
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < end, "the browser does not start"
            await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            with opener.open(address) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                break
            assert time.monotonic() < end, "the browser has no tab"
            await asyncio.sleep(0.05)
        return await websocket_connect(tabs[0]["webSocketDebuggerUrl"], max_message_size=256 << 20)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events until then are noted."""
        self._number += 1
        return self._runner.run(self._asked(self._number, method, params))

    async def _asked(self, number: int, method: str, params: Any) -> dict[str, Any]:
        await self._socket.write_message(
            json.dumps({"id": number, "method": method, "params": params})
        )
        while True:
            text = await asyncio.wait_for(self._socket.read_message(), SECONDS)
            assert text is not None, "the browser hung up"
            message = json.loads(text)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"])[:500])
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is complete."""
        self.ask("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + SECONDS
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < end, "the page does not load"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key; the focused element gets it."""
        codes = {"Enter": 13, "Tab": 9, " ": 32, "ArrowRight": 39}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "windowsVirtualKeyCode": codes[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text: str) -> None:
        """Insert text into the focused element."""
        self.ask("Input.insertText", text=text)

    def prefers(self, scheme: str) -> None:
        """Set the colour scheme of the system: ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def resize(self, width: int, height: int) -> None:
        """Size of the window; below 600 it is a phone."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


def screenshots(page: Path, out: Path) -> None:
    """Save screenshots of a page: light, dark, and on a phone."""
    with Browser() as browser:
        for name, scheme, width in (
            ("light", "light", 1200),
            ("dark", "dark", 1200),
            ("phone", "dark", 390),
        ):
            browser.resize(width, 900)
            browser.prefers(scheme)
            browser.open(page)
            height = browser.run("document.documentElement.scrollHeight")
            browser.resize(width, min(height, 12000))
            browser.screenshot(out / f"{name}.png")
