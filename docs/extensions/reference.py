"""Docstrings as reStructuredText: norms keep their bars, and what scikit-learn adds for its own router is left out."""

import re
from typing import Any

from sphinx.application import Sphinx


def skip_request_methods(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out ``set_fit_request`` and its like, which scikit-learn generates."""
    return True if name.endswith("_request") else None


def escape_bars(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Escape the bars of ``|x|`` outside literals: reStructuredText would take them as substitutions."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``)", line)
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-skip-member", skip_request_methods)
    app.connect("autodoc-process-docstring", escape_bars, priority=900)
    return {"parallel_read_safe": True}
