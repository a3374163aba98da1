"""How Sphinx builds the site: ``python -m sphinx -W -b html docs out``, without network."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]
tempfile.tempdir = tempfile.mkdtemp(prefix="bigpca-docs-")  # where examples write

import bigpca  # noqa: E402

project = "bigpca"
author = copyright = "The bigpca developers"
version = release = bigpca.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "reference",
    "gallery",
    "chart",
]
templates_path = ["templates"]
exclude_patterns = [
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.json",
    "gallery/*.md5",
    "gallery/*.zip",
    "gallery/index.rst",
]

# Text: MyST pages; blocks of code run in the tests, not here
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
copybutton_exclude = ".linenos, .gp, .go"

# Reference: one page for each public name, from its docstring
autosummary_generate = True
autodoc_typehints = "none"
python_maximum_signature_line_length = 100
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Gallery: these examples need no data and are executed, small; the others show stored pictures
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/(01|02_resume|03_tutorial_(large|number)|04_kernel_(denoising|scaling|words)|07|08)",
    "ignore_pattern": r"(06_jupyter|nearest_neighbour|tutorial_data|tutorial_pictures)\.py",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("bigpca",),
    "reference_url": {"bigpca": None},
    "image_scrapers": ("gallery.saved_pictures",),
    "reset_argv": "gallery.small_arguments",
    "remove_config_comments": True,
    "default_thumb_file": str(ROOT / "docs" / "static" / "text.png"),
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "plot_gallery": "True",
}

# Pages
ALONE = [page.stem for page in Path(__file__).parent.glob("*.md") if page.stem not in ("api", "gallery")]
html_theme = "pydata_sphinx_theme"
html_title = "bigpca"
html_static_path = ["static", "pictures"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "bigpca"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {page: [] for page in ALONE}  # nothing below them to list
