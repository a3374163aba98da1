"""What a newcomer does wrong in Python is answered with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigpca as bp

X = np.random.default_rng(0).standard_normal((30, 5))
TABLE = pd.DataFrame({"a": X[:, 0], "species": ["cat", "dog", "fox"] * 10, "b": X[:, 1]})
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no model": (lambda: bp.load("nope.zarr"), "nope.zarr does not exist; a saved model was expected. Check the path"),
    "data as a model": (lambda: bp.load("data.zarr"), "data.zarr is a Zarr array, such as data or scores"),
    "a folder as a model": (lambda: bp.load("."), "is not a model: it has no zarr.json"),
    "a file as a model": (lambda: bp.load("x.npy"), "x.npy is not a model: it has no zarr.json"),
    "a model as data": (lambda: bp.open("model.zarr"), "model.zarr is a saved model (PCA); rows of features"),
    "no data": (lambda: bp.PCA(2).fit("nope.npy"), "nope.npy does not exist"),
    "a column of text": (lambda: bp.PCA(1).fit(TABLE), "columns of X hold text: 'species' (such as 'cat')"),
    "a kernel's other name": (lambda: bp.KernelPCA(1, kernel="gaussian").fit(X), "Did you mean rbf?"),
    "a solver's other name": (lambda: bp.PCA(1, solver="full").fit(X), "scikit-learn's 'full' is 'covariance' here"),
    "a misspelt rule": (lambda: bp.PCA("elbo").fit(X), "Did you mean elbow?"),
    "a misspelt column": (
        lambda: bp.FisherDiscriminantAnalysis().fit(X, "labels.csv::specie"), "Did you mean species?"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("misuse")
    np.save(path / "x.npy", X)
    bp.ingest(X, path / "data.zarr")
    bp.PCA(2).fit(X).save(path / "model.zarr")
    TABLE[["a", "species"]].to_csv(path / "labels.csv", index=False)
    return path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    call, message = MISTAKES[name]
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        call()
    assert message in str(caught.value)


def test_an_array_of_a_model_is_opened_by_its_name(folder: Path) -> None:
    components = bp.open(folder / "model.zarr", member="components").compute()
    np.testing.assert_array_equal(components, bp.load(folder / "model.zarr").components_)


def test_dir_lists_the_public_names_only() -> None:
    assert dir(bp) == sorted([*bp.__all__, "__version__"])
    assert all(getattr(bp, name) is not None for name in dir(bp))
    assert bp.quality.__name__ == "bigpca.quality"
