"""Pictures of a report as PNG files: the page is opened in this machine's browser, and each picture shot.

So a paper has the pictures of the page, and nothing draws a figure a second time. The browser is driven by
Choreographer, which Plotly's own tools use; nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sweeper.errors import ExecutionError, UsageError
from sweeper.support.installation import install_command

_WIDTH, _SCALE = 1000, 2
_SECONDS = 60

_BOXES = """new Promise((resolve) => {
  const look = () => {
    if (document.documentElement.dataset.drawn !== "yes") return setTimeout(look, 50);
    const shown = [...document.querySelectorAll("#study-view section:not([hidden]) .picture")];
    resolve(JSON.stringify(shown.map((one) => {
      const box = one.getBoundingClientRect();
      return [one.id, box.left + scrollX, box.top + scrollY, box.width, box.height];
    })));
  };
  look();
})"""


def write_png(page: Path, directory: Path) -> tuple[Path, ...]:
    """Write each picture of a study's report as a PNG file below ``directory``; return the paths.

    Raises:
        UsageError: Choreographer is not installed, there is no browser, or the directory cannot be made.
        ExecutionError: The browser failed.
    """
    try:
        from choreographer.browsers import BrowserFailedError
        from choreographer.errors import ChromeNotFoundError
    except ModuleNotFoundError as error:
        msg = (
            f"--png needs the package {(error.name or '').partition('.')[0]!r}, which is not "
            f"installed: {install_command('plots')}"
        )
        raise UsageError(msg) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"--png {directory}: the directory cannot be made: {error.strerror or error}"
        raise UsageError(msg) from error
    try:
        # In a thread of its own, because the caller's may run an event loop, as a notebook's does.
        with ThreadPoolExecutor(1) as thread:
            shots = thread.submit(_shots_of, page.resolve().as_uri()).result()
    except ChromeNotFoundError as error:
        msg = (
            "--png needs Chrome or Chromium, and none was found; install one, or set "
            "BROWSER_PATH to its path"
        )
        raise UsageError(msg) from error
    except (BrowserFailedError, TimeoutError, RuntimeError, OSError) as error:
        msg = f"--png: the browser that draws the pictures failed: {type(error).__name__}: {error}"
        raise ExecutionError(msg) from error
    paths = []
    for name, data in shots.items():
        path = directory / f"{name.removesuffix('-picture')}.png"
        path.write_bytes(data)
        paths.append(path)
    return tuple(paths)


def _shots_of(address: str) -> dict[str, bytes]:
    return asyncio.run(asyncio.wait_for(_shots(address), _SECONDS))


async def _shots(address: str) -> dict[str, bytes]:
    from choreographer import Browser

    async with Browser(headless=True) as browser:
        tab = await browser.create_tab(address)

        async def ask(command: str, **options: Any) -> Any:
            answer: Any = await tab.send_command(command, options)
            if "error" in answer:
                msg = f"{command}: {answer['error'].get('message')}"
                raise RuntimeError(msg)
            return answer["result"]

        size = {"width": _WIDTH, "height": 1000, "deviceScaleFactor": _SCALE, "mobile": False}
        await ask("Emulation.setDeviceMetricsOverride", **size)
        light = [{"name": "prefers-color-scheme", "value": "light"}]
        await ask("Emulation.setEmulatedMedia", features=light)
        found = await ask(
            "Runtime.evaluate", expression=_BOXES, awaitPromise=True, returnByValue=True
        )
        shots = {}
        for name, x, y, width, height in json.loads(found["result"]["value"]):
            clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
            shot = await ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
            shots[name] = base64.b64decode(shot["data"])
        return shots
