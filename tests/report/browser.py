"""A real browser for tests: Chromium without a window, driven over the DevTools protocol.

`SLIPSTREAM_BROWSER` names the program, or else one on PATH is used; where there is none, tests that need it are
skipped and say so.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_START_S = 60.0
PATIENCE_S = 60.0


def find_browser() -> str | None:
    named = os.environ.get("SLIPSTREAM_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """One tab. `problems` are what its console said of errors, and exceptions nobody caught."""

    def __init__(self, socket: Any, session: str) -> None:
        self._socket, self._session, self._number = socket, session, 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, "sessionId": self._session}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_S))
            self._note(answer)
            if answer.get("id") == self._number and answer.get("sessionId") == self._session:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return
        method, data = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(data["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(data["args"])[:2000])
        elif method == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{data['entry']['text']} {data['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {json.dumps(done['exceptionDetails'])[:500]}")
        return done["result"].get("value")

    def until(self, condition: str, patience: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"never became true: {condition}; {self.problems}")
            time.sleep(0.05)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))  # fmt: skip

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole,
                         **({"clip": self._extent()} if whole else {}))  # fmt: skip
        path.write_bytes(base64.b64decode(shot["data"]))

    def _extent(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}


class Browser:
    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number -= 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if answer.get("id") == self._number:
                result: dict[str, Any] = answer["result"]
                return result

    def page(self) -> Page:
        """A new tab with cookies of its own."""
        context = self._call("Target.createBrowserContext")["browserContextId"]
        target = self._call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        return Page(self._socket, self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])


@contextmanager
def run_browser(profile: Path) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on PATH: install one, or name it in SLIPSTREAM_BROWSER")
    from websockets.sync.client import connect

    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
               "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(_address(profile, process), max_size=None, open_timeout=_START_S) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            process.wait(30)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The browser writes down where it listens once it does."""
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        if process.poll() is not None:
            pytest.skip(f"the browser did not start (exit code {process.returncode})")
        time.sleep(0.05)
    pytest.skip(f"the browser did not listen within {_START_S:.0f} s")
