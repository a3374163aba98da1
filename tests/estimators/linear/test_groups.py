"""Models of groups and of all but one group, from the moments that one read kept of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import bigpca as bp
from bigpca.estimators.shared.files import StoredModel
from tests.estimators.stores import save_changed

RNG = np.random.default_rng(0)
N, D = 150, 7
GROUPS = np.array([f"site{i}" for i in RNG.choice(4, N, p=[0.4, 0.3, 0.2, 0.1])])
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 3.0 * (GROUPS == "site1")[:, None]
Z = RNG.standard_normal((N, 2)) + X[:, :1]
WEIGHTS = RNG.integers(1, 4, N).astype(float)
FIT = bp.PCA(3).fit(X, groups=GROUPS)


def same(ours: Any, theirs: Any, rtol: float = 1e-9) -> None:
    for name in ("mean_", "explained_variance_", "components_", "total_variance_", "sum_weights_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=rtol, atol=rtol)
    assert ours.n_samples_ == theirs.n_samples_


FORMS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {  # rows, parameters, what is beside
    "memory": (lambda: X, {}, {}),
    "lazy": (lambda: da.from_array(X, chunks=(37, D)), {}, {}),
    "scaled": (lambda: X, {"scale": True, "center": False}, {}),
    "weighted": (lambda: X, {}, {"sample_weight": WEIGHTS}),
    "sparse": (lambda: csr_array(np.where(X > 0, X, 0)), {}, {}),
    "covariates": (lambda: X, {}, {"covariates": Z}),
    "batches": (lambda: bp.from_batches([X[:50], X[50:]], (N, D)), {}, {}),
    "gaps": (lambda: np.where(np.arange(N)[:, None] % 10 == 3, np.nan, X), {"nan_policy": "omit"}, {}),
    "mapped": (lambda: X, {"preprocess": bp.preprocessing.L2()}, {}),
    "a share": (lambda: X, {"n_components": 0.8}, {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_models_of_a_group_and_of_the_others_are_those_of_their_rows(name: str) -> None:
    make, options, beside = FORMS[name]
    rows, options = make(), {"n_components": 3} | options
    model = bp.PCA(**options).fit(rows, groups=GROUPS, **beside)
    assert model.plan_.passes <= 1 + (name == "covariates")
    same(model, bp.PCA(**options, solver="covariance").fit(make(), **beside))
    dense = X if name == "batches" else rows
    for group in ("site0", "site3"):
        for found, own in ((model.of_group(group), group == GROUPS), (model.without_group(group), group != GROUPS)):
            part = {key: value[own] for key, value in beside.items()}
            same(found, bp.PCA(**options, solver="covariance").fit(dense[own], **part), 1e-7)


def test_models_from_moments_return_the_container_of_the_model() -> None:
    model = bp.PCA(2).set_output(transform="pandas").fit(X, groups=GROUPS)
    other = model.of_group("site0").set_output(transform="default")
    assert isinstance(other.transform(X), np.ndarray)
    for found in (model, model.of_group("site0"), model.without_group("site0"), bp.merge(model, model)):
        assert list(found.transform(X)) == ["pca0", "pca1"]


def test_rows_and_groups_are_added_saved_and_merged(tmp_path: Path) -> None:
    order = np.argsort(GROUPS, kind="stable")
    rows, labels = X[order], GROUPS[order]
    cuts = (slice(0, 75), slice(75, 90), slice(90, N))  # the second ends one group and begins another
    first, *others = (bp.PCA(3).fit(rows[own], groups=labels[own]) for own in cuts)
    first.save(tmp_path / "m.zarr")
    grown = bp.load(tmp_path / "m.zarr")
    assert grown.groups_.tolist() == first.groups_.tolist()
    for own in cuts[1:]:
        grown.partial_fit(rows[own], groups=pd.Series(labels[own]))
    begun = bp.PCA(3)
    for own in cuts:
        begun.partial_fit(da.from_array(rows[own]), groups=labels[own])
    for model in (grown, begun, bp.merge(bp.merge(others[1], first), others[0])):
        model.save(tmp_path / "m.zarr", overwrite=True)
        for found in (model, bp.load(tmp_path / "m.zarr")):
            assert found.groups_.tolist() == FIT.groups_.tolist()
            same(found, FIT)
            for group in FIT.groups_:
                same(found.of_group(group), FIT.of_group(group))
                same(found.without_group(group), FIT.without_group(group))
    FIT.of_group("site2").save(tmp_path / "one.zarr")
    same(bp.load(tmp_path / "one.zarr").partial_fit(X[GROUPS != "site2"]), FIT)


def test_labels_are_joined_by_key_and_a_group_of_few_rows_has_as_many_components(tmp_path: Path) -> None:
    keys = [f"k{i:03d}" for i in range(N)]
    bp.ingest(X, tmp_path / "x.zarr", keys=keys)
    labels = pd.Series(np.where(np.arange(N) < 3, 7, 8), keys).iloc[::-1]
    model = bp.PCA(5).fit(tmp_path / "x.zarr", groups=labels)
    assert model.groups_.tolist() == [7, 8]
    few = model.of_group(7)
    assert few.n_components_ == 3
    np.testing.assert_allclose(few.mean_, X[:3].mean(axis=0))


def test_the_plan_has_a_state_for_each_group() -> None:
    plan, grouped = bp.PCA(2, solver="covariance").plan(X), bp.PCA(2).plan(X, groups=GROUPS)
    assert grouped.solver == "covariance"
    assert grouped.reason.endswith("a 7 x 7 matrix, for each of 4 groups")
    assert grouped.state_bytes == 4 * plan.state_bytes
    assert grouped.passes == 1
    with pytest.raises(MemoryError, match="memory"):
        bp.PCA(2, memory_limit="40 MiB").fit(np.zeros((50, 1000)), groups=np.arange(50) % 25)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FIT.of_group("site9"), ValueError, "group = 'site9' is none of the 4 groups with rows: 'site0', 'si"),
        (lambda: FIT.of_group(np.array(["site1", "site2"])), ValueError, "is none of the 4 groups"),
        (lambda: bp.PCA(2).fit(bp.from_batches(iter([X])), groups=GROUPS), ValueError, r"Give it: from_batches\("),
        (lambda: bp.PCA(2).fit(X).of_group("a"), ValueError, r"the model has no groups. Fit with PCA.fit\(X, groups=l"),
        (lambda: bp.PCA(2).fit(X, groups=range(N)).of_group(3), ValueError, "Found the group 3 with 1 sample"),
        (lambda: bp.PCA(2).fit(X, groups=["a"] * N).without_group("a"), ValueError, "'a': without it, none are"),
        (lambda: bp.PCA(2, solver="dot").fit(X, groups=GROUPS), ValueError, "solver = 'dot' cannot be used with"),
        (lambda: bp.PCA(2, nan_policy="mean").fit(X, groups=GROUPS), ValueError, "used with groups: use \"raise\" or"),
        (lambda: bp.PCA(2).fit(X, groups=GROUPS[1:]), ValueError, "there are 149 groups for 150 rows"),
        (lambda: bp.PCA(2).fit(X, groups=[None, *GROUPS[1:]]), ValueError, "1 of 150 .* missing .row 0.; .* Give"),
        (lambda: bp.PCA(2).fit(X, groups=GROUPS).partial_fit(X), ValueError, "give groups= for all or for none"),
        (lambda: bp.PCA(2).fit(X).partial_fit(X, groups=GROUPS), ValueError, "give groups= for all or for none"),
        (lambda: bp.merge(FIT, bp.PCA(3).fit(X)), ValueError, "some rows were fitted with a state for each fold or"),
        (lambda: bp.PCA(2).fit(X, groups=GROUPS).partial_fit(X, groups=range(N)), TypeError, "so far are strings"),
        (lambda: bp.ApproximatePCA(2).partial_fit(X, groups=GROUPS), TypeError, "and bigpca.PCA keeps the moments of"),
        (lambda: bp.PCA(center=np.ones(D)).fit(X, groups=GROUPS).set_params(center=True).of_group("site1"), ValueError,
         "was changed after the fit"),
    ],
)  # fmt: skip
def test_what_groups_cannot_do_is_said(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_moments_of_groups_that_are_too_large_to_keep_are_rejected_by_the_plan() -> None:
    with bp.config(keep_state_bytes=1000), pytest.raises(ValueError, match=r"moments of 4 groups, 1\.. KiB, wh"):
        bp.PCA(2).plan(X, groups=GROUPS)


@pytest.mark.filterwarnings("ignore:a jackknife over 3 groups")
def test_a_group_all_of_whose_rows_were_left_out_is_no_group_of_the_models(tmp_path: Path) -> None:
    weighted = bp.PCA(3).fit(X, groups=GROUPS, sample_weight=GROUPS != "site2")
    pair = bp.Ridge([1.0, 9.0]).fit(X, X[:, :2], groups=GROUPS, sample_weight=GROUPS != "site2")
    for one in (weighted, pair):
        one.save(tmp_path / "m.zarr", overwrite=True)
        for found in (one, bp.load(tmp_path / "m.zarr")):
            assert found.groups_.tolist() == ["site0", "site1", "site3"]
    same(weighted.partial_fit(X[GROUPS == "site2"], groups=GROUPS[GROUPS == "site2"]), FIT)
    assert weighted.groups_.tolist() == FIT.groups_.tolist()
    rows = np.where((GROUPS == "site2")[:, None], np.nan, X)
    model = bp.PCA(2, nan_policy="omit").fit(rows, groups=GROUPS)
    with pytest.raises(ValueError, match="'site2' is none of the 3 groups with rows"):
        model.of_group("site2")
    kept = bp.PCA(2).fit(X[GROUPS != "site2"], groups=GROUPS[GROUPS != "site2"])
    same(model.without_group("site0"), kept.without_group("site0"))
    ours, theirs = (bp.quality.standard_errors(one, method="jackknife") for one in (model, kept))
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_)
    np.testing.assert_allclose(bp.quality.drift(model).t2, bp.quality.drift(kept).t2)


def test_a_file_with_other_groups_than_labels_is_rejected(tmp_path: Path) -> None:
    names = [name for name in StoredModel.of(FIT).arrays if name.startswith("state__states_3_")]
    path = save_changed(FIT, dict.fromkeys(names), tmp_path / "m.zarr")
    with pytest.raises(bp.errors.ModelFormatError, match="it has statistics of 3 groups, and 4 labels of groups"):
        bp.load(path)
    path = save_changed(FIT, {"state__states_3_mean": np.zeros(D + 1)}, tmp_path / "n.zarr")
    with pytest.raises(bp.errors.ModelFormatError, match=r"it has mean of shape \(8,\), where \(7,\) was expected"):
        bp.load(path)
