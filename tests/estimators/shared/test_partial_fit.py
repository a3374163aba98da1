"""Rows added later, in any batches and in any order of merging, give the model of a fit on all rows."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import bigpca as bp
from bigpca import PCA, merge
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import unreadable

N, D = 60, 8
X = data_with_spectrum(N, power_law(D), mean=50.0)[0]


def assert_same_model(one: PCA, other: PCA) -> None:
    assert one.n_samples_ == other.n_samples_
    assert one.n_components_ == other.n_components_
    np.testing.assert_allclose(one.mean_, other.mean_, rtol=1e-12)
    np.testing.assert_allclose(one.total_variance_, other.total_variance_, rtol=1e-10)
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-8)
    np.testing.assert_allclose(one.noise_variance_, other.noise_variance_, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(one.transform(X), other.transform(X), atol=1e-8)


@pytest.mark.parametrize("n_components", [3, D, 0.9, None, "mle", bp.rules.RelativeThreshold(0.2)], ids=str)
def test_single_rows_are_enough_for_every_n_components(n_components: Any) -> None:
    pca = PCA(n_components)
    for row in X:
        pca.partial_fit(row[None])
    assert_same_model(pca, PCA(n_components, solver="covariance").fit(X))


def test_with_fewer_rows_than_components_there_is_one_component_per_row() -> None:
    pca = PCA(5).partial_fit(X[:1])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        pca.transform(X)
    assert [pca.partial_fit(X[i : i + 1]).n_components_ for i in range(1, 8)] == [2, 3, 4, 5, 5, 5, 5]


def test_omitted_rows_are_counted_over_all_batches() -> None:
    bad = X.copy()
    bad[[3, 50, 51]] = np.nan
    pca = PCA(3, nan_policy="omit").partial_fit(bad[:3]).partial_fit(bad[3:4]).partial_fit(bad[4:])
    assert (pca.n_omitted_, pca.n_samples_) == (3, N - 3)
    good = np.delete(X, [3, 50, 51], axis=0)
    np.testing.assert_allclose(pca.explained_variance_, PCA(3).fit(good).explained_variance_, rtol=1e-9)


def test_merged_models_keep_feature_names() -> None:
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(D)])
    both = merge(PCA(2).fit(frame[:30]), PCA(2).fit(X[30:]))
    assert list(both.feature_names_in_) == list(frame.columns)


def test_models_that_do_not_match_are_not_merged() -> None:
    pca = PCA(2).fit(X)
    with pytest.raises(ValueError, match="models of 8 and 5 features cannot be merged"):
        merge(pca, PCA(2).fit(X[:, :5]))
    with pytest.raises(ValueError, match="scale=False and True cannot be merged"):
        merge(pca, PCA(2, scale=True).fit(X))
    one, other = (PCA(2).fit(pd.DataFrame(X, columns=list(names))) for names in ("abcdefgh", "abdcefgh"))
    with pytest.raises(ValueError, match=r"the models name feature 2 'c' and 'd'.*Fit both on the same columns"):
        merge(one, other)


def test_a_dropped_state_is_said() -> None:
    message = r"needs the moments of all rows, 576 B, which are not kept because keep_state_bytes = 500 B. Fit again"
    whole = PCA(2).fit(X)
    with bp.config(keep_state_bytes=500):
        pca = PCA(2).fit(X)
        with pytest.raises(ValueError, match=f"partial_fit {message}"):
            pca.partial_fit(X)
        with pytest.raises(ValueError, match=f"merge {message}"):
            merge(pca, whole)
        with pytest.raises(ValueError, match=f"partial_fit {message}"):
            PCA(2).partial_fit(unreadable(N, D))


@pytest.mark.parametrize("model", [PCA(2), bp.ApproximatePCA(2)])
def test_a_state_that_a_block_of_settings_dropped_is_blamed_on_the_block(model: Any) -> None:
    with bp.config(keep_state_bytes=1):
        model.fit(X)
    with pytest.raises(ValueError, match="keep_state_bytes was smaller when it was fitted"):
        model.partial_fit(X)


def test_a_dot_fit_cannot_go_on_and_says_so() -> None:
    pca = PCA(2, solver="dot")
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as caught:
        pca.partial_fit(X)
    assert 'which solver="dot" never computes. Use solver="covariance"' in str(caught.value.__cause__)
    has = {one: hasattr(PCA(solver=one), "partial_fit") for one in ("auto", "covariance", "dot", "krylov")}
    assert has == {"auto": True, "covariance": True, "dot": False, "krylov": False}
    with pytest.raises(ValueError, match=r'merge needs the moments .* solver="dot" never computes'):
        merge(PCA(2).fit(X), pca.fit(X))
    with pytest.raises(ValueError, match=r'partial_fit needs .* fitted by solver="dot", which keeps none. Fit with'):
        pca.set_params(solver="auto").partial_fit(X)


def test_what_partial_fit_cannot_do_is_rejected_before_any_read() -> None:
    with pytest.raises(ValueError, match="n_components = 9 is out of range: data of 8 features have 1 to 8"):
        PCA(9).partial_fit(unreadable(N, D))
    with pytest.raises(ValueError, match="solver = 'full' is unknown"):
        PCA(2, solver="full").partial_fit(unreadable(N, D))
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"covariance needs .* per process"):
        PCA(2, memory_limit="1 MiB").partial_fit(unreadable(N, D))
