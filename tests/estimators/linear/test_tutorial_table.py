"""The tutorial's table 2 (Marukatat 2022): axes that hold 90, 95 and 99 % of the variance of z-scored data."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

from bigpca import PCA
from tests.estimators.stores import stored

TABLE = {
    "diabetes": (load_diabetes, 10, (7, 8, 8)),
    "breast cancer": (load_breast_cancer, 30, (7, 10, 17)),
    "iris": (load_iris, 4, (2, 2, 3)),
}


@pytest.mark.parametrize(("name", "solver"), [*((name, "covariance") for name in TABLE), ("iris", "dot")])
def test_the_numbers_of_axes_are_those_of_the_table(name: str, solver: str, tmp_path: Path) -> None:
    load, d, axes = TABLE[name]
    data = load().data
    assert data.shape[1] == d
    X = stored(tmp_path, data, (100, d))
    found = tuple(PCA(share, solver=solver, scale=True).fit(X).n_components_ for share in (0.90, 0.95, 0.99))
    assert found == axes


def test_the_ratios_reach_the_shares_with_these_axes_and_not_with_one_less() -> None:
    for load, _, axes in TABLE.values():
        held = np.cumsum(PCA(scale=True).fit(load().data).explained_variance_ratio_)
        np.testing.assert_allclose(held[-1], 1)
        for share, k in zip((0.90, 0.95, 0.99), axes, strict=True):
            assert held[k - 1] >= share > (held[k - 2] if k > 1 else 0)
