"""docs/: every page is reachable from its index, every word of the glossary is somewhere in the code."""

import importlib
import re

import pytest
from documents import ROOT

from clustersim.collectives.model import Algorithm
from clustersim.predictors.base import Predictor
from clustersim.schedules.action import ScheduleKind
from clustersim.topology.hops import Hops
from clustersim.topology.model import Router

DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
_LINK = re.compile(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)")
_ANCHORED = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
_ROW = re.compile(r"^\| [^|]+ \| [^|]+ \| (`[^|]+`) \|$", re.MULTILINE)


def linked(page):
    return {(page.parent / link).resolve() for link in _LINK.findall(page.read_text(encoding="utf-8"))}


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_leads_to_every_page():
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {INDEX.resolve()}
    assert sorted(str(page.relative_to(DOCS)) for page in pages - linked(INDEX)) == []


def test_the_readme_leads_to_the_index():
    assert INDEX.resolve() in linked(ROOT / "README.md")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_to_headings(page):
    found = _ANCHORED.findall(page.read_text(encoding="utf-8"))
    targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in found]
    assert [
        (path.name, anchor) for path, anchor in targets if path.suffix == ".md" and anchor not in anchors(path)
    ] == []


def names():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    return sorted({name for cell in _ROW.findall(text) for name in re.findall(r"`([\w.]+)`", cell)})


def test_every_row_of_the_glossary_names_code():
    rows = re.findall(r"^\| (?!word|---)", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(_ROW.findall((DOCS / "glossary.md").read_text(encoding="utf-8")))


def exists(name):
    """Return whether a name of the glossary is a module, or a public name of one."""
    module, _, last = f"clustersim.{name}".rpartition(".")
    try:
        importlib.import_module(f"{module}.{last}")
    except ModuleNotFoundError:
        return not last.startswith("_") and hasattr(importlib.import_module(module), last)
    return True


def test_every_name_of_the_glossary_exists():
    assert [name for name in names() if not exists(name)] == []


def test_no_word_stands_twice_in_the_glossary():
    words = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for word in words if word not in ("word", "---")]
    assert len(words) == len(set(words))


PROTOCOLS = {
    "predictor": ("predictor", Predictor),
    "algorithm": ("collective", Algorithm),
    "schedule": ("schedule", ScheduleKind),
    "kind": ("topology", Hops),
    "router": ("topology", Router),
}
"""What a page says can be said of each, by the word in its heading."""


@pytest.mark.parametrize("what", PROTOCOLS)
def test_the_page_of_a_protocol_names_every_member(what):
    page, protocol = PROTOCOLS[what]
    text = (DOCS / f"how-to-add-a-{page}.md").read_text(encoding="utf-8")
    _, after = re.split(rf"^#+ All that an? {what} can say$", text, flags=re.MULTILINE)
    table = re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]
    own = vars(protocol)
    members = {name for name in own if not name.startswith("_")} | ({"__call__"} & own.keys())
    assert set(re.findall(r"^\| `(\w+)[`(]", table, re.MULTILINE)) == members


@pytest.mark.parametrize("page", sorted({page for page, _ in PROTOCOLS.values()}))
def test_the_page_of_a_protocol_has_an_example_that_a_package_offers(page):
    """About thirty lines and a project file; test_docs.py installs it and runs the commands of the page."""
    text = (DOCS / f"how-to-add-a-{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python title=\w+\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert all(len(example.splitlines()) <= 45 for example in examples)
    assert "```toml title=pyproject.toml\n[project]" in text
    assert "After `pip install -e .`" in text


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda p: p.name)
def test_a_page_starts_with_what_it_answers(page):
    """After the title stands prose, in a short first sentence: no heading, table, list or code."""
    title, _, first = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert first[0] not in "#|-*>" and not first.startswith("```")
    sentence = re.split(r"(?<=[.?:])\s", first, maxsplit=1)[0]
    assert len(sentence.split()) <= 30
