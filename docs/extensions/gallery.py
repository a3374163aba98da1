"""Examples in the gallery: executed with small arguments and shown with what they draw, or with a stored picture; and
notebooks of them that run alone.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx_gallery.scrapers import figure_rst

ARGUMENTS = {
    "03_tutorial_large_shapes": "--networks VGG16 DenseNet121 --rows 200 -q 60",
    "03_tutorial_number_of_axes": "--rows 2000",
    "04_kernel_denoising": "--rows 1000",
    "04_kernel_scaling": "--rows 500",
}
SHARED = ("nearest_neighbour", "tutorial_pictures", "tutorial_data")  # modules of several examples
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PICTURES = Path(__file__).resolve().parent.parent / "pictures"
STORED = """
.. image:: /pictures/{name}.webp
   :alt: picture drawn by {name}.py

A run with the defaults drew this picture, from data that are not part of bigpca.

"""


def small_arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Return the command line of an example, as sphinx-gallery executes it."""
    return ARGUMENTS.get(Path(script_vars["src_file"]).stem, "").split()


def saved_pictures(block: tuple[Any, ...], block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Show the PNG files that an example has written to its temporary folder."""
    shown = []
    for picture in sorted(Path(tempfile.gettempdir()).rglob("*.png")):
        shown.append(next(block_vars["image_path_iterator"]))
        shutil.move(picture, shown[-1])
    return figure_rst(shown, gallery_conf["src_dir"])


def add_stored_picture(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the stored picture of an example, if it has one, below its title."""
    name = docname.removeprefix("gallery/")
    if docname.startswith("gallery/") and (PICTURES / f"{name}.webp").is_file():
        code = ".. code-block:: Python"
        source[0] = source[0].replace(code, STORED.format(name=name) + code, 1)


def complete_notebooks(app: Sphinx) -> None:
    """Put the modules that an example imports into its notebook, and take the kernel's command line from it."""
    for path in Path(app.srcdir, "gallery").glob("*.ipynb"):
        notebook = json.loads(path.read_text())
        said = "".join("".join(cell["source"]) for cell in notebook["cells"])
        cells = ["import sys\n\nsys.argv[1:] = []"]
        if cells[0] in said:  # of a page that did not change
            continue
        for name in SHARED:
            if f" {name} import" in said or f"import {name}" in said:
                cells.append(f"%%writefile {name}.py\n" + (EXAMPLES / f"{name}.py").read_text())
                said += cells[-1]
        empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        notebook["cells"][1:1] = [empty | {"source": cell.splitlines(keepends=True)} for cell in cells]
        path.write_text(json.dumps(notebook, indent=1))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_stored_picture)
    app.connect("builder-inited", complete_notebooks, priority=900)  # after sphinx-gallery has written them
    return {"parallel_read_safe": True}
