"""Approximate models grow with the collection: any batches and merges give the model of all rows, or are rejected."""

import re
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca import ApproximatePCA, merge
from bigpca.sketches import SRHT, FeatureHash, Gaussian, Sketch, SparseSign
from tests.builders import data_with_spectrum, power_law
from tests.estimators.linear.test_approximate_pca import VARIANTS, D, N, Q, X, approximate
from tests.estimators.stores import unreadable

pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def assert_same(one: ApproximatePCA, other: ApproximatePCA) -> None:
    assert (one.n_samples_, one.n_components_) == (other.n_samples_, other.n_components_)
    for name in ("explained_variance_", "eigenvalue_bounds_", "mean_", "total_variance_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-6)


GROWING: list[dict[str, Any]] = [
    *VARIANTS,
    {"approximation": "tutorial"},
    {"sketch": SRHT(Q)},
    {"sketch": FeatureHash(Q)},
]


@pytest.mark.parametrize("variant", GROWING, ids=str)
def test_merged_models_are_the_model_of_all_rows(variant: dict[str, Any]) -> None:
    a, b = (approximate(**variant).fit(part) for part in (X[:100], X[100:]))
    before = a.explained_variance_.copy(), b.components_.copy()
    assert_same(merge(a, b), approximate(**variant).fit(X))
    assert_same(merge(b, a), approximate(**variant).fit(X))
    assert np.array_equal(a.explained_variance_, before[0])
    assert np.array_equal(b.components_, before[1])


def test_centring_may_be_given_up_between_batches() -> None:
    model = approximate().partial_fit(X[:100]).set_params(center=False).partial_fit(X[100:])
    assert_same(model, approximate(center=False).fit(X))


@pytest.mark.parametrize("other", [Gaussian(Q, random_state=1), SparseSign(Q), Gaussian(Q + 1)], ids=str)
def test_products_with_another_matrix_are_not_added(other: Sketch) -> None:
    with pytest.raises(ValueError, match=r"sketch=.* and .* cannot be merged. Fit both with the same parameters"):
        merge(approximate().fit(X), approximate(sketch=other).fit(X))
    model = approximate().fit(X[:100])
    before = model.components_.copy()
    with pytest.raises(ValueError, match=r"sketch was changed after the fit: .*do not belong"):  # before the read
        model.set_params(sketch=other).partial_fit(X[100:])
    assert np.array_equal(model.components_, before)


def test_default_sketches_of_different_widths_are_not_added() -> None:
    wide = data_with_spectrum(260, power_law(250))[0]
    few, many = (ApproximatePCA(k).fit(wide) for k in (5, 20))
    with pytest.raises(
        ValueError, match=r"cannot be added, because these are different matrices W.*same sketch for all"
    ):
        merge(few, many)


def test_two_reads_leave_nothing_to_go_on_from_and_say_so() -> None:
    for parameters, named in (
        ({"approximation": "ritz"}, "approximation='ritz' reads"),
        ({"approximation": "tutorial", "scale": True}, "scale=True reads"),
    ):
        model = approximate(**parameters).fit(X)
        for grown in (model, approximate(**parameters)):
            with pytest.raises(AttributeError) as caught:
                grown.partial_fit(X)
            assert re.search(f"partial_fit needs a model of one read, but .*{named}", str(caught.value.__cause__))
        with pytest.raises(ValueError, match="merge needs a model of one read"):
            merge(model, model)


def test_a_state_is_kept_up_to_its_bytes() -> None:
    exactly = 8 * (D * (Q + 10 + 3) + Q + 10)
    with bp.config(keep_state_bytes=exactly):
        assert approximate().fit(X).partial_fit(X).n_samples_ == 2 * N
    with bp.config(keep_state_bytes=exactly - 1):
        model = approximate().fit(X)
    for call in (lambda: model.partial_fit(X), lambda: merge(model, model)):
        with pytest.raises(ValueError, match=r"needs the products of all rows, .* not kept .* keep_state_bytes"):
            call()
    with (
        pytest.raises(ValueError, match="partial_fit needs the products of all rows"),
        bp.config(keep_state_bytes=exactly - 1),
    ):
        approximate().partial_fit(unreadable(N, D))
