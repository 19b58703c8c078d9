"""A real browser for tests of pages: Debian's `chromium` and `chromium-driver`; without them such tests are skipped."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """A few calls of the W3C WebDriver protocol: enough to look at a page in headless chromium."""

    def __init__(self, address: str, profile: Path) -> None:
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            f"--disable-component-update --disable-sync --window-size=1200,900 --user-data-dir={profile}"
        )
        self.address = address
        options = {"args": flags.split(), "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address = f"{address}/session/{session['sessionId']}"

    def _call(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path | str) -> None:
        self._call("/url", {"url": page.resolve().as_uri() if isinstance(page, Path) else page})

    def run(self, script: str) -> Any:
        return self._call("/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        """Errors; Vega-Lite warns of sizes that it chooses itself."""
        found = self._call("/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] == "SEVERE"]

    def move_mouse(self, x: int, y: int) -> None:
        self._mouse(_move(x, y))

    def drag_mouse(self, x: int, y: int, to: int) -> None:
        """Press the button at (x, y), move sideways in steps and let go."""
        steps = [_move(x + (to - x) * step // 4, y) for step in range(1, 5)]
        self._mouse(_move(x, y), {"type": "pointerDown", "button": 0}, *steps, {"type": "pointerUp", "button": 0})

    def double_click(self, x: int, y: int) -> None:
        click = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._mouse(_move(x, y), *click, *click)

    def _mouse(self, *actions: dict[str, Any]) -> None:
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._call("/actions", {"actions": [pointer]})

    def emulate(self, *, dark: bool, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call(
            "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"media": media, "features": features}}
        )

    def width(self, pixels: int) -> None:
        """Show pages as on a screen of this width."""
        params = {"width": pixels, "height": 844, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self._call("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": params})

    def print_to(self, target: Path) -> None:
        """The page as a PDF."""
        found = self._call("/goog/cdp/execute", {"cmd": "Page.printToPDF", "params": {"printBackground": True}})
        target.write_bytes(base64.b64decode(found["data"]))

    def screenshot(self, target: Path) -> None:
        """The whole page as PNG."""
        params = {"captureBeyondViewport": True}
        found = self._call("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": params})
        target.write_bytes(base64.b64decode(found["data"]))

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """What the script returns as soon as it is true."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, (script, self.messages())
            time.sleep(0.1)
        return found

    def close(self) -> None:
        self._call("", None, "DELETE")


def _move(x: int, y: int) -> dict[str, Any]:
    return {"type": "pointerMove", "x": x, "y": y, "duration": 0}


@contextmanager
def started_browser(profile: Path) -> Iterator[Browser]:
    """A headless browser with a new profile."""
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = None
        for line in process.stdout:
            if match := re.search(r"started successfully on port (\d+)", line):
                port = match[1]
                break
        assert port is not None, "chromedriver did not start"
        try:
            found = Browser(f"http://127.0.0.1:{port}", profile)
            yield found
            found.close()
        finally:
            process.terminate()


def show(browser: Browser, page: Path | str) -> None:
    """Open a page and wait until its charts are drawn."""
    browser.open(page)
    browser.wait_for("return document.body.dataset.ready")
