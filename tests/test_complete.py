"""A new estimator or kernel is named wherever it must be: each failure says what to add, and where."""

import ast
import json
import tarfile
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca
from bigpca import kernels
from bigpca.cli import options
from bigpca.estimators.loading import CLASSES
from tests.estimators import test_every_estimator
from tests.estimators.kernel import test_kernel_bounds
from tests.estimators.linear import test_plan
from tests.estimators.shared import every_fit, test_sklearn_api
from tests.estimators.stored_models import make
from tests.faults import test_measured_peaks
from tests.kernels import test_kernels
from tests.passes import test_parallelism

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests/estimators/stored_models"
X = np.zeros((99, 9), "f4")
COMBINED = {"Sum", "Product", "RBFOf", "Normalized"}  # made of other kernels
KERNELS: set[str] = {
    name
    for name in kernels.__all__
    if isinstance(one := getattr(kernels, name), type) and issubclass(one, kernels.Kernel) and one is not kernels.Kernel
}


def kinds(made: Iterable[Any]) -> set[str]:
    return {type(one).__name__ for one in made}


def on_page(page: str, names: Iterable[str], heading: str) -> set[str]:
    """Return the names in the table below a heading of a page."""
    table = (ROOT / page).read_text().partition(f"# {heading}\n")[2].partition("\n#")[0]
    return {name for name in names if f"`{name}`" in table or f"`{name}(" in table}


def recorded() -> set[str]:
    """Return the estimators of fits whose digests are in every record."""
    records = [
        {key.partition(":")[0].partition(".")[0] for key in one["digests"]}
        for one in json.loads(every_fit.RECORD.read_text())
    ]
    return kinds(make() for name, (make, _) in every_fit.FITS.items() if all(name in one for one in records))


def stored() -> set[str]:
    with tarfile.open(STORED / "models.tar.xz") as archive, np.load(STORED / "expected.npz") as expected:
        return {name.partition("/")[0] for name in archive.getnames()} & {key.partition("/")[0] for key in expected}


def compared_there() -> set[str]:
    pytest.importorskip("array_api_compat", reason="other array libraries need array-api-compat")
    from tests.passes import test_kernel_there

    return kinds(test_kernel_there.KERNELS.values())


def bounded() -> set[str]:
    choices = (test_kernel_bounds.DEFINITE | test_kernel_bounds.INDEFINITE).values()
    return kinds(choice.make(1.0, 1.0) for choice in choices)


# Where each estimator is named -> those that are, and those that need not be.
ESTIMATORS: dict[str, tuple[Callable[[], set[str]], set[str]]] = {
    "bigpca/report/methods.toml": (
        lambda: set(tomllib.loads((ROOT / "bigpca/report/methods.toml").read_text("utf-8"))["methods"]),
        {"SketchTransformer"},
    ),
    "ESTIMATORS of bigpca/cli/options.py": (
        lambda: set(options.ESTIMATORS.values()),
        {"RotatedPCA", "SketchTransformer"},
    ),
    'docs/containers.md, "What each estimator can do"': (
        lambda: on_page("docs/containers.md", CLASSES, "What each estimator can do"),
        set(),
    ),
    "CASES of tests/estimators/test_every_estimator.py": (
        lambda: kinds(case.make() for case in test_every_estimator.CASES.values()),
        set(),
    ),
    "PREFIXES of tests/estimators/test_every_estimator.py": (lambda: set(test_every_estimator.PREFIXES), set()),
    "CHECKED of tests/estimators/shared/test_sklearn_api.py": (
        lambda: kinds(test_sklearn_api.CHECKED),
        {"SketchTransformer", "RotatedPCA"},
    ),
    "CASES of tests/estimators/linear/test_plan.py": (
        lambda: kinds(case() for case in test_plan.CASES.values()),
        {"RotatedPCA"},  # its fit is that of another
    ),
    "FITS of tests/passes/test_parallelism.py": (
        lambda: kinds(case(X, X, np.zeros(99))[0] for case in test_parallelism.FITS.values()),
        set(),
    ),
    "CASES of tests/faults/test_measured_peaks.py": (
        lambda: kinds(case() for _, case in test_measured_peaks.CASES.values()),
        {"RotatedPCA", "SketchTransformer"},
    ),
    "FITS of tests/estimators/shared/every_fit.py": (lambda: kinds(fit() for fit, _ in every_fit.FITS.values()), set()),
    "digests.json, by python tests/estimators/shared/every_fit.py record FIT": (recorded, set()),
    "MODELS of tests/estimators/stored_models/make.py": (lambda: set(make.MODELS), set()),
    "models.tar.xz, by python tests/estimators/stored_models/make.py --add NAME": (stored, set()),
}


@pytest.mark.parametrize("place", ESTIMATORS)
def test_every_estimator_is_in(place: str) -> None:
    named, exempt = ESTIMATORS[place]
    found, expected = named(), CLASSES.keys() - exempt
    assert found >= expected, f"{place} lacks {sorted(expected - found)}"
    assert found <= CLASSES.keys(), f"{place} names {sorted(found - CLASSES.keys())}, which is no estimator"


def overriding(*members: str) -> set[str]:
    """Return the kernels, but for combined ones, that have one of these members of their own."""
    own = {
        name
        for name in KERNELS - COMBINED
        if any(getattr(getattr(kernels, name), member) is not getattr(kernels.Kernel, member) for member in members)
    }
    assert own  # they are still called so
    return own


KERNEL_PLACES: dict[str, tuple[Callable[[], set[str]], set[str]]] = {
    "CASES of tests/kernels/cases.py": (lambda: kinds(case.kernel for case in test_kernels.ALL.values()), KERNELS),
    'docs/explanation.md, "Kernels"': (lambda: on_page("docs/explanation.md", KERNELS, "Kernels"), KERNELS - COMBINED),
    "KERNELS of tests/passes/test_kernel_there.py": (compared_there, overriding("place")),
    "DEFINITE or INDEFINITE of tests/estimators/kernel/test_kernel_bounds.py": (
        bounded,
        overriding("place", "entry_error"),
    ),
}


@pytest.mark.parametrize("place", KERNEL_PLACES)
def test_every_kernel_is_in(place: str) -> None:
    named, expected = KERNEL_PLACES[place]
    assert named() >= expected, f"{place} lacks {sorted(expected - named())}"


def test_the_change_log_counts_the_kernels() -> None:
    text = f"There are {len(KERNELS - COMBINED)} kernels"
    assert text in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md does not say {text!r}"


def test_type_checkers_see_the_names_that_are_imported_on_first_use() -> None:
    """``bigpca/__init__.py`` has them twice: in HOMES, and below ``if TYPE_CHECKING``."""
    tree = ast.parse((ROOT / "bigpca/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    shown = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # otherwise they are not exported
    }
    homes = {(module, name) for module, names in bigpca.HOMES.items() for name in names.split()}
    differing = shown ^ (homes | {("bigpca", name) for name in bigpca.MODULES})
    assert not differing, f"named in only one of the two: {sorted(differing)}"


def test_every_quick_test_exists() -> None:
    for line in (ROOT / "tests/quick.txt").read_text(encoding="utf-8").splitlines():
        file, _, name = line.partition("::")
        path = ROOT / file if name else ROOT / "tests" / file
        assert f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8") or not name, line
