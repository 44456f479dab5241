"""The docs as a site: it builds without a warning and loads nothing from the network; its notebook says what it would say now."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from clustersim.version import __version__

ROOT = Path(__file__).parents[2]
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser fetches by itself, by the element and its attribute; `a` is followed by a reader alone."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """Collects what a page loads."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if (
            tag in LOADS
            and given.get(LOADS[tag])
            and given.get("rel") not in ("canonical", "prev", "next", "alternate")
        ):
            self.found.append(given[LOADS[tag]])


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        local = [one for one in loads.found if not re.match(r"(https?:)?//", one)]
        assert local == loads.found, page.name
        files = [page.parent / one.partition("?")[0].partition("#")[0] for one in local if not one.startswith("data:")]
        if page.name != "404.html":  # whose links begin at the top of wherever the site is
            assert [str(path) for path in files if not path.exists()] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//", styles) == []


@pytest.mark.slow
def test_every_page_is_on_the_site_and_is_found(site):
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert {path.stem for path in site.glob("*.html")} >= names | {"index", "tasks", "notebook"}
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    text = " ".join(one["text"] for one in index["docs"])
    assert "oversubscription" in text
    assert "simulate" in {one["title"] for one in index["docs"]} or "clustersim.api.forecast.simulate" in text
    assert 'alt="Predicted against measured' in (site / "trust.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_notebook_answers_what_it_shows():
    """Run anew, each cell has the answers that are stored with it."""
    from notebook import fresh, stored

    old = stored()
    for one, other in zip(old.cells, fresh().cells, strict=True):
        assert one.get("outputs") == other.get("outputs"), f"{one.source}\nrun scripts/update-docs"
    assert sum(cell.cell_type == "code" for cell in old.cells) >= 5


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert sorted(pages - set(re.findall(r": ([\w-]+\.md)$", text, re.MULTILINE))) == []


def test_pictures_say_in_words_what_they_show():
    """Each picture of the first pages has a text that a screen reader reads."""
    for page in ("gallery", "trust"):
        texts = re.findall(r"!\[(.*?)\]\(images/", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
        assert texts
        assert [text for text in texts if len(text.split()) < 8] == []


def test_the_citation_is_of_this_version():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert found["version"] == __version__
    assert {"cff-version", "message", "title", "authors"} <= found.keys()
