"""Write ``bigpca.ipynb`` from ``examples/06_jupyter.py``, its one source: ``python
cluster/jupyter/make_notebook.py``.
"""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode, write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "06_jupyter.py"
NOTEBOOK = Path(__file__).resolve().parent / "bigpca.ipynb"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook_of(script: str) -> NotebookNode:
    """Return the notebook of a script in which ``# %%`` begins a cell and ``# %% [markdown]`` one of comments."""
    cells = []
    for number, part in enumerate(script.split("# %%")[1:], start=1):
        kind, _, body = part.partition("\n")
        if kind.strip() == "[markdown]":
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            cells.append(new_markdown_cell(text, id=f"cell-{number}"))
        else:
            cells.append(new_code_cell(body.strip(), id=f"cell-{number}"))
    return new_notebook(cells=cells, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})


if __name__ == "__main__":
    write(notebook_of(SOURCE.read_text()), NOTEBOOK)
