"""What README.md and docs/ say is run: commands print what stands there, examples work, names and links exist."""

import re

import pytest
from documents import PAGES, ROOT, parse, prepare
from yaml_reference import PAGE, reference

from clustersim import gpus, plugins

LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_of_a_page_does_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(prepare(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    for example in parse(page, tmp_path).examples():
        example.evaluate()


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("docs/decisions/*.md")], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert missing == []


def test_the_reference_of_keys_is_that_of_the_specs():
    assert PAGE.read_text(encoding="utf-8") == reference(), "run scripts/update-docs"


def existing():
    rooms = ("collectives", "predictors", "schedules", "topology")
    yield from (name for room in rooms for name in plugins.names(f"clustersim.{room}"))
    yield from (path.stem for folder in ("topologies", "workloads") for path in ROOT.glob(f"{folder}/*.yaml"))
    yield from (gpu.name for gpu in gpus.everything())


@pytest.mark.parametrize("name", existing())
def test_the_readme_names_all_that_there_is(name):
    assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")
