"""Fisher kernels: scores are gradients of the log-likelihood, whitened by the diagonal information of the papers."""

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from bigpca.kernels.custom import Fisher, GaussianMixtureScore


def fitted(K: int = 3, d: int = 4, seed: int = 0) -> GaussianMixture:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((300, d)) * rng.uniform(0.5, 2, d) + rng.integers(0, K, (300, 1)) * 2.0
    return GaussianMixture(K, covariance_type="diag", random_state=seed).fit(X)


def score_of(mixture: GaussianMixture) -> GaussianMixtureScore:
    return GaussianMixtureScore(mixture.weights_, mixture.means_, mixture.covariances_)


def likelihood(mixture: GaussianMixture, softmax: np.ndarray, means: np.ndarray, deviations: np.ndarray, X: np.ndarray):
    """scikit-learn's log-likelihood of each row, as a function of what the scores are gradients by."""
    moved = GaussianMixture(len(means), covariance_type="diag")
    moved.weights_ = np.exp(softmax) / np.exp(softmax).sum()
    moved.means_, moved.covariances_, moved.precisions_cholesky_ = means, deviations**2, 1 / deviations
    return moved.score_samples(X)


def test_scores_are_the_gradients_of_the_log_likelihood():
    mixture = fitted()
    score = score_of(mixture)
    X = mixture.sample(20)[0]
    at = [np.log(mixture.weights_), mixture.means_, np.sqrt(mixture.covariances_)]
    step = 1e-5  # central differences err by about step^2 and eps / step: 1e-10
    columns = []
    for which in range(3):
        for place in np.ndindex(at[which].shape):
            up, down = ([values.copy() for values in at] for _ in range(2))
            up[which][place] += step
            down[which][place] -= step
            columns.append((likelihood(mixture, *up, X) - likelihood(mixture, *down, X)) / (2 * step))
    of_means = mixture.weights_[:, None] / mixture.covariances_
    information = np.concatenate([mixture.weights_, of_means.ravel(), 2 * of_means.ravel()])
    gradients = score.scores(X) * np.sqrt(information)
    np.testing.assert_allclose(gradients, np.transpose(columns), rtol=1e-6, atol=1e-7 * np.abs(gradients).max())


def test_scores_do_not_change_with_the_units_or_the_origin_of_the_data():
    mixture = fitted()
    X = mixture.sample(30)[0]
    units, origin = np.array([1e-3, 1.0, 20.0, 1e4]), np.array([5.0, -1e4, 0.0, 1e6])
    moved = GaussianMixtureScore(mixture.weights_, mixture.means_ * units + origin, mixture.covariances_ * units**2)
    found = moved.scores(X * units + origin)
    np.testing.assert_allclose(found, score_of(mixture).scores(X), rtol=1e-5, atol=1e-6)


def test_rows_far_from_all_components_have_finite_scores():
    score = score_of(fitted())
    for dtype in (np.float32, np.float64):
        scores = score.scores(np.full((2, 4), 1e6, dtype))
        assert scores.dtype == dtype
        assert np.isfinite(scores).all()


def test_mixtures_that_do_not_suit_are_rejected():
    with pytest.raises(ValueError, match=r"and \(3, 4, 4\); .* Give the variances of a diagonal mixture"):
        score_of(GaussianMixture(3).fit(fitted().sample(50)[0]))
    with pytest.raises(ValueError, match=r"rows have 3 columns, but the mixture was fitted to 4"):
        Fisher(score_of(fitted()))(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("weights", "means", "covariances", "message"),
    [
        ([0.5, 0.5], [[0.0], [1.0]], [[1.0]], r"shapes \(2,\), \(2, 1\) and \(1, 1\); \(K,\), \(K, d\)"),
        ([0.5, 0.4], [[0.0], [1.0]], [[1.0], [1.0]], r"weights have minimum 0\.4 and sum 0\.9"),
        ([1.0, 0.0], [[0.0], [1.0]], [[1.0], [1.0]], r"weights have minimum 0\.0 and sum 1\.0"),
        ([1.0], [[0.0]], [[0.0]], r"a variance is not positive \(the smallest is 0\.0\)"),
        ([1.0], [[np.nan]], [[1.0]], r"means or covariances are not finite"),
    ],
)
def test_numbers_that_make_no_mixture_are_rejected(weights, means, covariances, message):
    with pytest.raises(ValueError, match=message):
        GaussianMixtureScore(weights, means, covariances)


def test_scores_that_are_no_function_or_of_unknown_width_are_rejected():
    with pytest.raises(TypeError, match=r"score = 3 is of type int; an object with scores\(rows\), or a func"):
        Fisher(3)
    with pytest.raises(TypeError, match=r"the score has no width\(d\), and D = None"):
        Fisher(np.sin)
    for D in (0, 2.0, True):
        with pytest.raises(
            ValueError, match=r"D = .* is not a count of score columns. Give an integer of at least 1, or None"
        ):
            Fisher(np.sin, D)


def test_scores_of_a_wrong_shape_or_not_finite_are_rejected():
    X = np.ones((4, 2))
    assert Fisher(np.sin, 2)(X).shape == (4, 4)
    with pytest.raises(ValueError, match=r"scores of 4 rows have shape \(4, 2\); \(4, 3\) was expected"):
        Fisher(np.sin, 3)(X)
    with pytest.raises(ValueError, match=r"score 1 of row 13 is inf, which is not finite"):
        Fisher(lambda rows: np.where(np.arange(8).reshape(4, 2) == 7, np.inf, rows), 2).prepare(X, None, 10)
