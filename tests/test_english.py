"""Plain English: turns that have no correct use do not come back into the pages, nor, as far as it is clear of them,
into the package.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOWHERE = (  # neither in pages nor in docstrings, messages and comments of the package
    "called otherwise", "nor do they", "but for it", "stands back", "without a word",
    "as it is asked", "has a say", "are no vectors", "so that neither", "take the place of", "takes the place of",
    "have a say", " asks of",
    "a {type(",  # errors.an chooses the article
)  # fmt: skip
IN_NO_PAGE = ("of those that", "is taken for")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "cluster").rglob("*.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "changes.md"),
    *sorted((ROOT / "examples").glob("*.py")),
]


def turns_in(paths: list[Path], turns: tuple[str, ...]) -> list[str]:
    found = []
    for path in paths:
        text = re.sub(r"\s+(# )?", " ", path.read_text()).lower()
        found += [f"{path.relative_to(ROOT)}: {turn}" for turn in turns if turn in text]
    return found


@pytest.mark.parametrize(
    ("paths", "turns"),
    [(PAGES, NOWHERE + IN_NO_PAGE), (sorted((ROOT / "bigpca").rglob("*.py")), NOWHERE)],
    ids=["pages", "package"],
)
def test_turns_without_a_correct_use_do_not_come_back(paths: list[Path], turns: tuple[str, ...]) -> None:
    assert len(paths) > 50
    assert turns_in(paths, turns) == []
