"""Labelled rows added to kernel models give the model of a fit on all rows with the same landmarks; saved models go
on.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca import KernelRoweisDiscriminantAnalysis, KernelSupervisedPCA
from tests.estimators.labelled import labelled_rows
from tests.estimators.stores import unreadable

N, D, C, M = 150, 5, 4, 30
X, Y = labelled_rows(N, D, C, apart=1.0)
NAMES = np.array(["dog", "ape", "cod", "bee"])
REAL = np.column_stack([X[:, 0] ** 2, np.sin(X[:, 1])])
SAMPLINGS: dict[str, Any] = {"given rows": X[:M] + 0.01, "row numbers": np.arange(M)}
MODELS: dict[str, Any] = {
    "supervised PCA": KernelSupervisedPCA(2, gamma=0.1),
    "kernel PCA": KernelRoweisDiscriminantAnalysis(3, r1=0, r2=0, gamma=0.1),
    "Roweis": KernelRoweisDiscriminantAnalysis(3, r1=0.3, r2=0.7, normalize=True, gamma=0.1),
    "Fisher": KernelRoweisDiscriminantAnalysis(2, r1=0, r2=1, regularization=0.1, gamma=0.1),
}
ATTRIBUTES = (
    "eigenvalues_", "n_samples_", "n_omitted_", "n_unlabelled_", "rank_", "total_variance_", "landmarks_",
    "kernel_evaluations_",
)  # fmt: skip


def assert_same(one: Any, other: Any, rtol: float = 1e-9, skip: tuple[str, ...] = ()) -> None:
    for name in ATTRIBUTES:
        if name not in skip:
            a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(), err_msg=name)
    assert hasattr(one, "classes_") == hasattr(other, "classes_")
    if hasattr(one, "classes_"):
        np.testing.assert_array_equal(one.classes_, other.classes_)
    scores, truth = one.transform(X), other.transform(X)
    np.testing.assert_allclose(scores, truth, rtol=0, atol=1e-7 * np.abs(truth).max())


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_in_parts_equal_one_fit_with_the_same_landmarks(name: str, sampling: str) -> None:
    template = clone(MODELS[name]).set_params(sampling=SAMPLINGS[sampling])
    model, truth = clone(template), clone(template).fit(X, NAMES[Y])
    for start, stop in pairwise([0, M, 31, 90, N]):
        model.partial_fit(X[start:stop], NAMES[Y[start:stop]])
    assert_same(model, truth)


@pytest.mark.parametrize("label_kernel", ["linear", "rbf"])
def test_real_labels_grow_with_the_label_features_of_the_first_fit(label_kernel: str) -> None:
    labels = np.round(REAL[:, 0])
    template = KernelSupervisedPCA(1, gamma=0.1, sampling=X[:M], label_kernel=label_kernel, label_gamma=0.3)
    rows = np.flatnonzero(np.isin(labels, labels[:60]))  # a Gaussian label kernel is exact on labels that it saw
    model = clone(template).fit(X[:60], labels[:60]).partial_fit(X[rows[60:]], labels[rows[60:]])
    assert_same(model, clone(template).fit(X[rows], labels[rows]), 1e-8)
    with pytest.raises(ValueError, match="labels have 2 columns, but 1 in the first fit"):
        model.partial_fit(X, REAL)


def test_the_dual_form_keeps_no_statistics_and_says_so() -> None:
    model = KernelSupervisedPCA(2, gamma=0.1, solver="pairs")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="partial_fit") as raised:
        model.partial_fit(X, Y)
    assert 'which solver="pairs" does not keep. Use solver="landmarks"' in str(raised.value.__cause__)
    with pytest.raises(ValueError, match=r'which a fit with .* solver="pairs" does not keep\. Fit again'):
        model.fit(X, Y).set_params(solver="landmarks").partial_fit(X, Y)


@pytest.mark.parametrize(
    "model", [bp.NystromKernelPCA(2, kernel="rbf", gamma=0.1), MODELS["supervised PCA"], MODELS["Roweis"]], ids=str
)
def test_a_batch_that_does_not_fit_is_rejected_before_the_read(model: Any) -> None:
    fitted = clone(model).set_params(sampling=X[:M]).fit(X, Y)
    lazy, labels = unreadable(10**6, D, chunk=10**5), np.arange(10**6) % C
    with pytest.raises(bp.errors.MemoryBudgetError):
        fitted.set_params(memory_limit="1 MiB").partial_fit(lazy, labels)
    with pytest.raises(bp.errors.EvaluationBudgetError, match="max_kernel"), bp.config(max_kernel_evaluations=1e6):
        fitted.set_params(memory_limit=None).partial_fit(lazy, labels)
