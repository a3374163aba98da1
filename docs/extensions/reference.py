"""What the site takes from the repository, made fit for it: docstrings, and links of the files that pages include.

Norms in docstrings keep their bars, and methods that scikit-learn generates for its own router are left out.
"""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

LINKS = {  # of included files, as they are written there, and as links to pages
    "[cluster/gateway](cluster/gateway)": "{doc}`cluster/gateway <how-to/gateway>`",
    "[bigpca.ipynb](bigpca.ipynb)": "{doc}`bigpca.ipynb <notebook>`",
    "[../local](../local)": "{doc}`../local <local>`",
}


def point_to_pages(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    """Let links of an included file point to pages of the site."""
    for written, target in LINKS.items():
        content[0] = content[0].replace(written, target)


def skip_request_methods(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out ``set_fit_request`` and its like, which scikit-learn generates."""
    return True if name.endswith("_request") else None


def escape_names(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape ``|x|`` and ``mean_`` outside literals: reStructuredText would take them as substitutions and links."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``)", line)
            parts[::2] = [re.sub(r"\||(?<=\w)_(?=[\s,.;:)]|$)", r"\\\g<0>", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("include-read", point_to_pages)
    app.connect("autodoc-skip-member", skip_request_methods)
    app.connect("autodoc-process-docstring", escape_names, priority=900)
    return {"parallel_read_safe": True}
