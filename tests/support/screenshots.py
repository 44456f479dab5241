"""The pictures of pages in docs/: which commands make the page, and what of it is shown."""

import shlex
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from gallery import IMAGES

QUALITY = 80
"""Of WebP: text stays sharp."""
MOST = 150_000
"""Bytes of a picture."""


class Screenshot(NamedTuple):
    commands: tuple[str, ...]
    """The docs name these beside the picture; the last one writes the page."""
    page: str
    parts: tuple[str, ...]
    """Selectors: it shows all from the first to the last."""
    width: int = 1000
    clicks: tuple[str, ...] = ()


RUN = ("clustersim run superpod_h100_128 llama3_70b --why --html --out step",)
SLOW = (
    "clustersim run rail_optimized llama3_8b --nodes 4 --tp 2 --pp 2 --global-batch 128 "
    "--set 'faults=[{link: \"nic[13]\", rate: 3GB/s}]' --out slow --quiet",
    "clustersim report slow",
)
SWEEP = (
    "clustersim sweep superpod_h100_128 llama3_70b --tp 1,2,4,8 --pp 1,2,4,8,16 --micro-batch 1,2,4 "
    "--set training.recompute=none,full --out sweep",
    "clustersim explore sweep",
)
SCREENSHOTS = {
    "report": Screenshot(RUN, "step/report.html", ("header", "#answer"), 1200),
    "report-timeline": Screenshot(RUN, "step/report.html", ("#timeline",)),
    "report-kernels": Screenshot(RUN, "step/report.html", ("#kernels",), 1300),
    "report-links": Screenshot(SLOW, "slow/report.html", ("#network",)),
    "explorer": Screenshot(SWEEP, "sweep/report.html", ("header", "#parallel"), 1200),
}
"""Name below docs/images → what it shows."""


def made(commands: tuple[str, ...], folder: Path) -> None:
    """Run the commands that write a page, in a folder."""
    for command in commands:
        _, *words = shlex.split(command)
        subprocess.run([sys.executable, "-m", "clustersim", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def written(page: Any, name: str, folder: Path = IMAGES) -> Path:
    """Write the picture of an open page into a folder, and return its file."""
    from PIL import Image

    shot = SCREENSHOTS[name]
    for selector in shot.clicks:
        page.click(selector)
    page.wait_for_timeout(200)
    boxes = [page.locator(part).first.bounding_box() for part in shot.parts]
    top, end = min(box["y"] for box in boxes), max(box["y"] + box["height"] for box in boxes)
    clip = {"x": 0, "y": max(0, top - 8), "width": shot.width, "height": end - top + 20}
    picture = Image.open(BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
    path = folder / f"{name}.webp"
    picture.save(path, quality=QUALITY, method=6)
    return path
