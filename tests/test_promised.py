"""What the last release promised is what there is, but for what the change log names."""

import json
import re
from pathlib import Path

import pytest

from bigpca.names import deprecated
from tests.promised import changed, promised

LIST = Path(__file__).with_name("promised.json")
CHANGES = LIST.parents[1] / "CHANGELOG.md"


def newest_changes() -> set[str]:
    """Return the names in code style in the newest section of the change log, and the parts of those with dots."""
    newest = re.split(r"^## ", CHANGES.read_text(), flags=re.MULTILINE)[1]
    return {part for code in re.findall(r"`([^`]+)`", newest) for part in re.findall(r"[\w.]+", code)}


def test_what_differs_from_the_last_release_is_in_the_change_log() -> None:
    known = newest_changes()
    differs = changed(json.loads(LIST.read_text()), promised())
    differs.pop("version", None)
    unsaid = [f"{name} {how}" for name, how in differs.items() if not {name, name.rpartition(".")[2]} & known]
    assert not unsaid, f"name them in the newest section of CHANGELOG.md: {unsaid}"


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"calls": {"f": "x"}}, {"calls": {"f": "x, y=0"}}, {"f": "was 'x' and is 'x, y=0'"}),
        ({"calls": {"f": "x"}}, {"calls": {"g": "x"}}, {"f": "was 'x' and is None", "g": "was None and is 'x'"}),
        (
            {"attributes": {"PCA": ["a_"]}},
            {"attributes": {"PCA": ["b_"]}},
            {"a_": "of PCA is gone", "b_": "of PCA is new"},
        ),
        ({"methods": {"f": ["() of A"]}}, {"methods": {"f": []}}, {"f": "was ['() of A'] and is []"}),
        ({"formats": {"models": [1, 0]}}, {"formats": {"models": [1, 1]}}, {"models": "was [1, 0] and is [1, 1]"}),
        ({"exit codes": {"2": "a"}}, {"exit codes": {"2": "b"}}, {"2": "was 'a' and is 'b'"}),
    ],
)
def test_every_kind_of_difference_is_seen(before: object, now: object, expected: dict[str, str]) -> None:
    assert changed(before, before) == {}
    assert changed(before, now) == expected


def test_what_is_deprecated_still_works_and_says_what_to_use() -> None:
    @deprecated("0.2", alphas="alpha")
    def solved(X: int, alpha: float = 1.0) -> tuple[int, float]:
        return X, alpha

    @deprecated("0.3", "bigpca.merge")
    def joined(a: int) -> int:
        return a

    with pytest.warns(FutureWarning, match=r"^alphas is deprecated since bigpca 0\.2, .* Use alpha\.$") as told:
        assert solved(1, alphas=2.0) == (1, 2.0)  # type: ignore[call-arg]
    assert told[0].filename == __file__
    assert solved(1, alpha=3.0) == (1, 3.0)  # warnings are errors here
    with pytest.raises(TypeError, match="was given alphas and alpha, its new name"):
        solved(1, alphas=2.0, alpha=3.0)
    with pytest.warns(FutureWarning, match=r"joined is deprecated since bigpca 0\.3, .* Use bigpca\.merge\.$"):
        assert joined(4) == 4
