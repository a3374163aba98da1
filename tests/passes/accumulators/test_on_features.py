"""States of Nyström features equal the same states of the features that NumPy makes of all rows."""

from __future__ import annotations

import io
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

from bigpca import kernels
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.class_moments import ClassMoments
from bigpca.passes.accumulators.landmark_moments import LandmarkMap
from bigpca.passes.accumulators.left_product import LeftProduct
from bigpca.passes.accumulators.on_features import OnFeatures
from bigpca.passes.rows import RowInput
from bigpca.solvers.features import landmark_transform
from tests.estimators.labelled import centred, labelled_rows, within_scatter
from tests.passes.kit import folded, full

Array = NDArray[Any]
N, D, C, M = 500, 6, 4, 25
X, Y = labelled_rows(N, D, C, mean=5.0)
DELTA = np.random.default_rng(1).standard_normal((N, 2))
KERNELS = [kernels.RBF(0.1), kernels.Polynomial(0.1, 1.0, 2), kernels.Laplacian(0.2)]


def mapped(kernel: kernels.Kernel) -> LandmarkMap:
    T = landmark_transform(np.asarray(kernel(X[:M]), np.float64))
    return LandmarkMap((kernel,), X[:M], (T,), np.full(D, 5.0), np.arange(M))


def template(features: LandmarkMap, codes: Array = Y) -> OnFeatures:
    r = features.transforms[0].shape[1]
    inner: dict[str, Accumulator] = {
        "classes": ClassMoments(r, C, codes.astype(np.int32)),
        "cross": LeftProduct(r, DELTA),
    }
    return OnFeatures(D, features, inner)


def on_features(rows: Array, state: OnFeatures, chunk: int, **policies: str) -> OnFeatures:
    given = RowInput(da.from_array(rows, chunks=(chunk, D)) + 0, **policies)
    return folded(given, state, shift=np.zeros(D)).state


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("chunk", [N, 64, 7])
def test_moments_of_classes_and_label_products_are_those_of_the_whole_features(
    kernel: kernels.Kernel, chunk: int
) -> None:
    features = mapped(kernel)
    B = np.asarray(kernel(X, X[:M]), np.float64) @ features.transforms[0]
    found: Any = on_features(X, template(features), chunk)
    classes, cross = found.inner["classes"], found.inner["cross"]
    truth, size = within_scatter(B, Y), np.abs(B).max()
    np.testing.assert_allclose(full(classes.scatter), truth, rtol=0, atol=1e-9 * truth.max())
    np.testing.assert_allclose(classes.means, [B[j == Y].mean(axis=0) for j in range(C)], rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(cross.about(B.mean(axis=0)), DELTA.T @ centred(B), rtol=0, atol=1e-9 * N * size)
    assert found.evaluations == N * M


def test_rows_with_missing_values_and_without_labels_are_left_out() -> None:
    features, bad, codes = mapped(KERNELS[0]), X.copy(), Y.copy()
    bad[::9, 1] = np.nan
    codes[::5] = -1
    kept = ~np.isnan(bad).any(axis=1)
    B = np.asarray(KERNELS[0](X, X[:M]), np.float64) @ features.transforms[0]
    found: Any = on_features(bad, template(features, codes), 30, nan_policy="omit")
    truth = within_scatter(B[kept & (codes >= 0)], Y[kept & (codes >= 0)])
    np.testing.assert_allclose(full(found.inner["classes"].scatter), truth, rtol=0, atol=1e-9 * truth.max())
    product = DELTA[kept].T @ B[kept]
    np.testing.assert_allclose(found.inner["cross"].about(np.zeros(B.shape[1])), product, rtol=0, atol=1e-10 * N)
    assert found.evaluations == kept.sum() * M


def test_a_state_travels_as_named_arrays_without_pickle() -> None:
    state: Any = on_features(X, template(mapped(KERNELS[0])), 100)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **state.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        back: Any = template(mapped(KERNELS[0])).bare().with_arrays(dict(archive))
    assert back.evaluations == state.evaluations
    for name, array in state.to_arrays().items():
        np.testing.assert_array_equal(back.to_arrays()[name], array)
    held = sum(array.nbytes for array in state.to_arrays().values())
    assert abs(held - template(mapped(KERNELS[0])).state_bytes) <= 8 * 4 * M  # but for a few vectors


def test_landmarks_travel_once_and_not_with_every_task() -> None:
    whole = template(mapped(KERNELS[0]))
    bare: Any = whole.without_shared()
    assert bare.features is None
    assert bare.with_shared(whole.shared).features is whole.features
    assert whole.flops_per_row > bare.flops_per_row
    assert whole.product_bytes > bare.product_bytes


def test_fingerprints_tell_landmarks_kernels_and_labels_apart() -> None:
    first = template(mapped(KERNELS[0])).describe()
    assert template(mapped(KERNELS[0])).describe() == first
    assert template(mapped(kernels.RBF(0.11))).describe() != first
    assert template(mapped(KERNELS[0]), Y[::-1]).describe() != first
