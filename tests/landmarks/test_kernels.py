"""Landmarks under every sort of kernel: vectors, histograms, strings, matrices that are there already."""

from typing import Any

import numpy as np
import pytest

from bigpca.kernels import (
    RBF,
    HistogramIntersection,
    Kernel,
    Laplacian,
    Linear,
    Polynomial,
    Precomputed,
    Spectrum,
    normalized,
    string_codes,
)
from bigpca.landmarks import SAMPLINGS
from tests.builders import offset_data
from tests.landmarks.cases import choose, features, matrix, request, residual_sum

N, M = 200, 12
VECTORS = offset_data(N, 6, mean=1.0, dtype="f8")
WORDS = string_codes(np.array(["".join(w) for w in np.random.default_rng(0).choice(list("abc"), (N, 9))]))
CASES: dict[str, tuple[Kernel, Any]] = {
    "laplacian": (Laplacian(gamma=0.1), VECTORS),
    "normalised sum": (normalized(Linear() + Polynomial(degree=3, gamma=0.1)), VECTORS),
    "histogram": (HistogramIntersection(), np.abs(VECTORS)),
    "string": (Spectrum(3), WORDS),
    "precomputed": (Precomputed(), matrix(RBF(gamma=0.1), VECTORS)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_residual_is_that_of_the_matrix(name: str) -> None:
    kernel, X = CASES[name]
    K = matrix(kernel, X)
    found = choose("rpcholesky", request(X, kernel, M))
    assert found.indices is not None
    assert len(set(found.indices)) == M
    assert found.trace == pytest.approx(np.trace(K), rel=1e-12)
    first = found.indices[: M // 2]
    assert residual_sum(kernel, X, first) == pytest.approx(np.trace(K) - (features(K, first) ** 2).sum(), rel=1e-8)


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s != "kmeans"])
@pytest.mark.parametrize("kernel", [RBF(gamma=0.1), normalized(Polynomial(degree=3, gamma=0.1))])
def test_a_matrix_that_is_there_already_gives_the_landmarks_of_its_kernel(kernel: Kernel, sampling: str) -> None:
    K = matrix(kernel, VECTORS)
    expected = choose(sampling, request(VECTORS, kernel, M))
    found = choose(sampling, request(K, Precomputed(), M))
    assert np.array_equal(found.indices, expected.indices)  # type: ignore[arg-type]
    assert found.evaluations == expected.evaluations


def test_a_matrix_with_missing_rows_is_rejected() -> None:
    K = matrix(RBF(gamma=0.1), VECTORS)
    K[7] = np.nan
    with pytest.raises(ValueError, match=r"rows between 0 and 199 were left out .*missing values.* by number"):
        choose("diagonal", request(K, Precomputed(), M, nan_policy="omit"))
    with pytest.raises(ValueError, match=r'"kmeans" averages rows, but .* does not compare vectors'):
        choose("kmeans", request(K, Precomputed(), M))
