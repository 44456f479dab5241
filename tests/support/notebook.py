"""docs/notebooks/first_steps.ipynb, run: what each cell answers now."""

import nbformat
from documents import ROOT
from nbclient import NotebookClient

NOTEBOOK = ROOT / "docs/notebooks/first_steps.ipynb"


def stored() -> nbformat.NotebookNode:
    """Return the notebook as it lies there."""
    return nbformat.read(NOTEBOOK, as_version=4)


def fresh() -> nbformat.NotebookNode:
    """Return it with the answers of the present code."""
    book = stored()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when it ran, which no two runs agree on
    book.metadata.language_info = {"name": "python"}
    return book
