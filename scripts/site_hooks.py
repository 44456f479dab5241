"""What makes the docs a site: the README is its first page, and files that pages name have pages.

mkdocs calls the functions below by their names. Nothing is written into docs/.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
TITLED = re.compile(r"^```(\w+) title=(\S+)$", re.MULTILINE)
LANGUAGE = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".csv": "text",
    ".sh": "sh",
    ".json": "json",
}
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files beside docs/ that are pages of the site."""
MOVED = {
    "README.md": "tasks.md",
    "notebooks/first_steps.ipynb": "notebook.md",
    **{f"../{name}": page for name, page in TOP.items()},
}
"""Where links of docs/ to these lead on the site."""
NOTEBOOK = ROOT / "docs/notebooks/first_steps.ipynb"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all decisions into the navigation: each is a file, and nobody has to list it."""
    made = [f"decisions/{path.name}" for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    inside = next(part["Trust and inside"] for part in config.nav if "Trust and inside" in part)
    inside.append({"Decisions": made})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, the index by task, the notebook, and a page for each file outside docs/ that a page names."""
    tasks = files.get_file_from_path("README.md")
    if tasks is not None:
        files.remove(tasks)
    text = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    made = {
        **{page: _below((ROOT / name).read_text(encoding="utf-8")) for name, page in TOP.items()},
        "tasks.md": text,
        "notebook.md": notebook(json.loads(NOTEBOOK.read_text(encoding="utf-8"))),
    }
    for path in _named():
        made[_page_of(path)] = _source(path)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the pages of the site, and give titled blocks the form that the highlighter knows."""
    here = page.file.src_uri
    folder = posixpath.dirname(here)
    text = LINK.sub(lambda link: f"{link[1]}{_target(link[2], folder)}{link[3]}", markdown)
    return TITLED.sub(r'```{.\1 title="\2"}', text)


def _target(link: str, folder: str) -> str:
    """Return where a link of a page in `folder` of docs/ leads on the site."""
    place = posixpath.normpath(posixpath.join("docs", folder, link))
    inside = posixpath.relpath(place, "docs")
    if inside in MOVED:
        return posixpath.relpath(MOVED[inside], folder or ".")
    if not inside.startswith("..") and not inside.startswith("examples/"):
        return link
    return posixpath.relpath(_page_of(ROOT / place), folder or ".")


def _below(text: str) -> str:
    """Return a page from beside docs/ as one of docs/: its links begin one folder further down."""
    return LINK.sub(lambda link: f"{link[1]}{posixpath.relpath(link[2], 'docs')}{link[3]}", text)


def _named() -> list[Path]:
    """Return the files and folders outside the site's pages that a page links to."""
    found = set()
    for page in [*(ROOT / name for name in TOP), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")]:
        for _, link, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = (page.parent / link).resolve()
            outside = ROOT / "docs" not in path.parents or ROOT / "docs/examples" in path.parents
            if outside and path not in [ROOT / "docs", *(ROOT / name for name in TOP)] and path.exists():
                found.add(path)
    return sorted(found)


def _page_of(path: Path) -> str:
    return f"files/{path.relative_to(ROOT).as_posix()}.md"


def _source(path: Path) -> str:
    """Return a page that shows a file, or lists a folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir()) if not one.name.startswith("_"))
        return f"---\nsearch: {{exclude: true}}\n---\n# {name}/\n\n{inside}\n"
    text = path.read_text(encoding="utf-8")
    return (
        f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{{.{LANGUAGE.get(path.suffix, 'text')}}}\n{text}\n````\n"
    )


def notebook(cells: dict[str, Any]) -> str:
    """Return a notebook as a page: its text, its code, and what that answered when it ran last."""
    return "\n\n".join(_cell(cell) for cell in cells["cells"])


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    shown = [_output(one) for one in cell.get("outputs", ())]
    return "\n\n".join([f"```python\n{text}\n```", *shown])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">\n{"".join(data["text/html"])}\n</div>'
    return f"```text\n{''.join(data.get('text/plain', output.get('text', ''))).rstrip()}\n```"
