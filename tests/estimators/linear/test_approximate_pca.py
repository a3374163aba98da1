"""Approximate PCA from one read: what each sketch and core gives, what is known of it, and how models grow."""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import hadamard

import bigpca as bp
from bigpca import ApproximatePCA, merge
from bigpca.errors import ApproximationWarning
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, Sketch, SparseSign
from tests.builders import assert_covered, data_with_spectrum, power_law
from tests.estimators.stores import exact, unreadable

N, D, Q, K = 300, 64, 16, 4
SKETCHES: dict[str, Sketch] = {
    "gaussian": Gaussian(Q),
    "sparse signs": SparseSign(Q, nnz=4),
    "feature hash": FeatureHash(Q),
    "unsigned hash": FeatureHash(Q, n_hashes=3, signed=False),
    "srht": SRHT(Q),
    "downsample": Downsample((8, 8), (4, 4)),
}
CORES = ["nystrom", "tutorial", "ritz"]
VARIANTS: list[dict[str, Any]] = [{}, {"center": False}, {"scale": True}, {"scale": True, "center": False}]
Array = NDArray[Any]
X = data_with_spectrum(N, power_law(D, 1.5), mean=2.0)[0]


def approximate(k: Any = K, sketch: Sketch | None = SKETCHES["gaussian"], **options: Any) -> ApproximatePCA:
    return ApproximatePCA(k, sketch, **options)


def covariance(rows: Array, *, center: bool = True, scale: bool = False) -> tuple[Array, Array]:
    """The matrix that is approximated (d, d), and the columns' deviations."""
    wide = rows.astype(np.float64)
    about = wide - wide.mean(axis=0)
    deviations = about.std(axis=0) if scale else np.ones(rows.shape[1])
    values = (about if center else wide) / deviations
    return values.T @ values / (len(rows) - 1), deviations


def nystrom_values(A: Array, W: Array) -> Array:
    """Eigenvalues of ``A W (W'A W)^-1 W'A``, by plain NumPy."""
    Y = A @ W
    found: Array = np.linalg.eigvalsh(Y @ np.linalg.pinv(W.T @ Y, rcond=1e-12, hermitian=True) @ Y.T)[::-1]
    return found


@pytest.fixture(autouse=True)
def _doubts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Warnings that bounds are wide are a claim of their own; here sketches are narrow on purpose."""
    with warnings.catch_warnings():
        if "warns" not in request.function.__name__:
            warnings.simplefilter("ignore", ApproximationWarning)
        yield


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", SKETCHES)
def test_every_sketch_and_core_is_finite_and_within_its_bounds(
    name: str, core: str, dtype: str, float32_products: None
) -> None:
    rows = X.astype(dtype)
    for variant in VARIANTS:
        A, deviations = covariance(rows, **variant)
        values, total = np.linalg.eigvalsh(A)[::-1][:K], float(np.trace(A))
        slack = (1e-5 if dtype == "f4" else 1e-12) * total
        model = approximate(K, SKETCHES[name], approximation=core, **variant).fit(da.from_array(rows, chunks=(70, D)))
        for attribute in ("components_", "explained_variance_", "eigenvalue_bounds_", "residuals_", "mean_"):
            assert np.isfinite(getattr(model, attribute)).all()
        assert_covered(model.eigenvalue_bounds_, values, slack)
        if core != "tutorial":
            assert (model.explained_variance_ <= values + slack).all()
        V = np.linalg.qr(model.components_.T)[0]
        least, most = model.captured_variance_bounds_ * total
        assert least - slack <= np.trace(V.T @ A @ V) <= most + slack
        off = model.components_ @ A - model.explained_variance_[:, None] * model.components_
        assert (np.linalg.norm(off, axis=1) <= model.residuals_ + slack).all()
        np.testing.assert_allclose(np.linalg.norm(model.components_, axis=1), 1, rtol=1e-10)
        np.testing.assert_allclose(model.total_variance_, total, rtol=1e-5 if dtype == "f4" else 1e-12)
        if variant.get("scale"):
            np.testing.assert_allclose(model.scale_, deviations, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", ["gaussian", "feature hash", "downsample"])
def test_the_nystrom_core_is_its_formula_also_where_one_read_finds_the_scale(
    name: str, variant: dict[str, Any]
) -> None:
    rows = X * np.geomspace(0.1, 10.0, D)
    A, deviations = covariance(rows, **variant)
    W = deviations[:, None] * SKETCHES[name].matrix(D)  # the test matrix D W of z-scored rows
    model = approximate(K, SKETCHES[name], **variant).fit(rows)
    np.testing.assert_allclose(model.explained_variance_, nystrom_values(A, W)[:K], rtol=1e-6)
    assert model.n_passes_ == 1


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("variant", [*VARIANTS, {"scale": list(range(1, D + 1))}], ids=lambda given: str(given)[:40])
@pytest.mark.parametrize("sketch", [Gaussian(D), SparseSign(D), SRHT(D)], ids=str)
def test_a_sketch_as_wide_as_the_rows_is_exact(sketch: Sketch, variant: dict[str, Any], weighted: bool) -> None:
    rows = np.random.default_rng(3).standard_normal((N, D)) * np.geomspace(0.03, 30, D) + 1  # flat where scaled
    weights = np.arange(N) % 4.0 if weighted else np.ones(N)
    mean = weights @ rows / weights.sum()
    scale, about = variant.get("scale", False), rows - mean if variant.get("center", True) else rows
    deviations = (
        np.sqrt(weights @ (rows - mean) ** 2 / weights.sum()) if scale is True else 1 if scale is False else scale
    )
    about = np.sqrt(weights / (weights.sum() - 1))[:, None] * about / deviations
    model = approximate(K, sketch, **variant).fit(rows, sample_weight=weights if weighted else None)
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(about.T @ about)[::-1][:K], rtol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_tutorial_core_is_algorithm_4(variant: dict[str, Any]) -> None:
    model = approximate(approximation="tutorial", **variant).fit(X)
    A, deviations = covariance(X, **variant)
    rows = (X - (X.mean(axis=0) if variant.get("center", True) else 0)) / deviations
    Z = rows @ SKETCHES["gaussian"].matrix(D)
    eigenvalues, U = np.linalg.eigh(Z.T @ Z / (N - 1))
    eigenvalues, U = eigenvalues[::-1][:K], U[:, ::-1][:, :K]
    axes = (rows.T @ Z @ U / eigenvalues).T
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    np.testing.assert_allclose(model.explained_variance_, eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * axes, axis=1)), 1, rtol=1e-10)
    assert A.shape == (D, D)
    assert np.abs(model.components_ @ model.components_.T - np.eye(K)).max() > 1e-6  # not orthogonal, as printed


@pytest.mark.parametrize("name", SKETCHES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_one_more_read_improves_every_eigenvalue(name: str, variant: dict[str, Any]) -> None:
    one, two = (approximate(K, SKETCHES[name], approximation=core, **variant).fit(X) for core in ("nystrom", "ritz"))
    values = np.linalg.eigvalsh(covariance(X, **variant)[0])[::-1][:K]
    # Powers of A on the same block: by Weyl the second can only come nearer.
    assert (two.explained_variance_ >= one.explained_variance_ - 1e-9 * values[0]).all()
    assert (values - two.explained_variance_).sum() < 0.6 * (values - one.explained_variance_).sum()


def test_probes_tighten_the_bounds_at_a_stated_probability() -> None:
    plain, scaled = approximate(sketch=Gaussian(48)).fit(X), approximate(sketch=Gaussian(48), scale=True).fit(X)
    assert plain.bounds_confidence_ == 0.999
    assert scaled.bounds_confidence_ == 1.0  # probes would need the scale before the read
    assert approximate(scale=True, approximation="ritz").fit(X).bounds_confidence_ == 0.999


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_offset_costs_no_digits(variant: dict[str, Any], offset: float) -> None:
    rows = data_with_spectrum(N, np.ones(D), mean=offset)[0] * np.geomspace(0.1, 10.0, D)
    rows[:, 3] = 0.1
    A, _ = covariance(np.delete(rows, 3, axis=1), **variant)
    model = approximate(K, Downsample((8, 8), (8, 8)), **variant).fit(rows)  # W = I: nothing is lost
    values = np.linalg.eigvalsh(A)[::-1][:K]
    np.testing.assert_allclose(model.explained_variance_, values, rtol=1e-6, atol=1e-13 * values[0])
    if model.scale_ is not None:
        assert model.scale_[3] == 1


def test_a_share_is_taken_of_the_true_total_and_rejected_beyond_the_sketch() -> None:
    model = approximate(0.5).fit(X)
    assert model.explained_variance_ratio_.sum() > 0.5
    assert model.explained_variance_ratio_[:-1].sum() <= 0.5
    with pytest.raises(
        ValueError, match=r"n_components = 0.999 needs more of the spectrum than a sketch of 16 columns"
    ):
        approximate(0.999).fit(X)
    assert approximate(None).fit(X).n_components_ == Q
    assert approximate(None).fit(X[:5]).n_components_ == 5


NARROW = {
    "2": X[:2], "3": X[:3], "equal": np.full((3, D), 2.0),
    "booleans": X[:, :2] > 1.85, "bytes": (254 + (X[:, :3] > 2)).astype("u1"),  # a few columns that hardly vary
    "near 2^31": (2**31 - 20 + 3 * X[:, :4].clip(0, 6)).astype("i4"), "far": 1e8 + X[:, :4],
}  # fmt: skip


@pytest.mark.parametrize("rows", NARROW.values(), ids=NARROW)
@pytest.mark.parametrize("core", CORES)
def test_fewer_rows_or_columns_than_the_sketch_are_exact(core: str, rows: Array) -> None:
    model = approximate(1, SKETCHES["gaussian"] if rows.shape[1] == D else None, approximation=core).fit(rows)
    if core != "tutorial":
        np.testing.assert_allclose(model.explained_variance_, exact(rows, 1)[0], rtol=1e-6)
    assert np.isfinite(model.residuals_).all()
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize(("k", "q"), [(3, 100), (80, 800), (500, 4000)])
def test_the_default_sketch_has_ten_columns_for_a_component_and_at_least_100(k: int, q: int) -> None:
    rows = unreadable(10_000, 4_000)
    assert ApproximatePCA(k).plan(rows).state_bytes == ApproximatePCA(k, Gaussian(q)).plan(rows).state_bytes


REJECTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sketch": Gaussian(65)}, ValueError, "q = 65 is over the 64 columns of the data"),
    ({"n_components": 17}, ValueError, "n_components = 17 exceeds the 16 columns of the sketch, which is the most"),
    ({"sketch": Downsample((8, 9), (4, 4))}, ValueError, r"\(8, 9\).*72.*64"),
    ({"n_components": "mle"}, ValueError, 'n_components = "mle" needs the whole spectrum'),
    ({"n_components": 65}, ValueError, "n_components = 65 is out of range"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REJECTED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_rejected_unread(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    parameters: dict[str, Any] = {"n_components": K, "sketch": Gaussian(Q)} | changes
    for call in ("fit", "plan", "partial_fit"):
        with pytest.raises(error, match=message):
            getattr(ApproximatePCA(**parameters), call)(unreadable(N, D))


def test_the_tutorial_core_has_no_density_but_least_squares_reconstructions() -> None:
    model = approximate(approximation="tutorial").fit(X)
    for name in ("score", "score_samples", "get_covariance", "get_precision"):
        with pytest.raises(AttributeError) as caught:
            getattr(model, name)
        assert "components are not orthonormal (off by " in str(caught.value.__cause__)
    axes = model.components_.T
    expected = axes @ np.linalg.lstsq(axes, (X - model.mean_).T, rcond=None)[0]
    found = model.inverse_transform(model.transform(X))
    np.testing.assert_allclose(found, expected.T + model.mean_, rtol=0, atol=1e-10)


def one_read(p: float, core: str) -> tuple[ApproximatePCA, float, float]:
    """Fit rows of eigenvalues i^-p in 2,000 columns; mean similarity and mean error of the first 20 of q = 500."""
    d, n = 2000, 2048
    spectrum = power_law(d, p)
    U = hadamard(n, dtype=np.float32)[:, 1 : d + 1]  # orthogonal columns of sum 0: the axes are the unit vectors
    rows = U * np.sqrt(spectrum * (n - 1) / n).astype("f4")
    model = ApproximatePCA(20, Gaussian(500), approximation=core).fit(rows)
    similarity = np.abs(model.components_[np.arange(20), np.arange(20)])
    errors = np.abs(model.explained_variance_ - spectrum[:20]) / spectrum[:20]
    return model, float(similarity.mean()), float(errors.max())


def test_a_heavy_tail_warns_and_a_light_one_does_not() -> None:
    with pytest.warns(
        ApproximationWarning, match=r'bounds certify \d+ of 20 components: .*Use approximation="ritz" .*krylov'
    ):
        _, similarity, _ = one_read(0.5, "nystrom")
    assert similarity < 0.95  # with reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert one_read(2.0, "nystrom")[1] >= 0.999


@pytest.mark.parametrize("n", [20_000, 120_000])
def test_narrow_rows_of_few_values_fit_within_the_rounding_of_their_products(n: int) -> None:
    for seed in range(4):
        rows = np.random.default_rng(seed).random((n, 2 + seed % 2)) < 1e-3
        rows[:3] = True
        for given in (rows, rows.astype("i1"), rows * [1.0, 1e-8, 1.0][: rows.shape[1]]):
            model = approximate(1, None).fit(given)
            truth = np.linalg.eigvalsh(np.cov(given.T.astype("f8")))[-1]
            lower, upper = model.eigenvalue_bounds_[0]
            assert lower <= truth <= upper


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
