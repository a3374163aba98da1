"""Centres, scales and whitening, given and learned, against NumPy on the whole matrix."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import clone

import bigpca as bp
from bigpca.data.sources import open as open_array
from bigpca.estimators.linear.model import standardization_of
from bigpca.quality import frechet_distance
from tests.estimators.stores import stored, unreadable

Array = NDArray[Any]
N, D, K = 120, 9, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)) * 0.7 ** np.arange(D) + RNG.standard_normal(D)
CENTRE, SCALE = X.mean(axis=0) + 0.3 * RNG.standard_normal(D), RNG.random(D) + 0.5
LATITUDES = np.linspace(-80, 80, D)
ALLELES = RNG.binomial(2, RNG.random(D), (N, D)).astype("i1")
ALLELES[:, 4] = 2  # monomorphic
SHARES = ALLELES.mean(axis=0) / 2
PATTERSON = np.sqrt(np.where(np.arange(D) == 4, 1.0, SHARES * (1 - SHARES)))

BLOCKS = {"first": slice(0, 4), "even": range(4, 9, 2), "odd": range(5, 9, 2)}


def of_blocks(rows: Array) -> Array:
    """Roots of the first eigenvalue of ``Y'Y / (n - 1)`` of the block of each column."""
    roots = np.empty(D)
    for own in BLOCKS.values():
        roots[own] = np.linalg.norm(rows[:, own], 2) / np.sqrt(N - 1)  # a range is an index, too
    return roots


FLAT = np.where(np.arange(D) % 2 * (np.arange(D) > 4) > 0, 3.1, X)  # one block is constant
ABOUT, RULE = X - X.mean(axis=0), bp.scales.Blocks
# center, scale, rows, and NumPy's centre and divisors
CASES: dict[str, tuple[Any, Any, Array, Array, Array]] = {
    "given centre": (CENTRE, False, X, CENTRE, np.ones(D)),
    "centre of zeros": (np.zeros(D), False, X, np.zeros(D), np.ones(D)),
    "the mean": (X.mean(axis=0), False, X, X.mean(axis=0), np.ones(D)),
    "given scale": (True, SCALE, X, X.mean(axis=0), SCALE),
    "given scale, no centre": (False, list(SCALE), X, np.zeros(D), SCALE),
    "both given": (list(CENTRE), SCALE, X, CENTRE, SCALE),
    "deviations about a given centre": (CENTRE, True, X, CENTRE, X.std(axis=0)),
    "latitudes": (True, bp.scales.CosLatitude(LATITUDES), X, X.mean(axis=0), np.cos(np.deg2rad(LATITUDES)) ** -0.5),
    "blocks": (True, RULE(BLOCKS), X, X.mean(axis=0), of_blocks(ABOUT)),
    "blocks, no centre": (False, RULE(BLOCKS), X, np.zeros(D), of_blocks(X)),
    "blocks about a given centre": (CENTRE, RULE(BLOCKS), X, CENTRE, of_blocks(X - CENTRE)),
    "blocks of standardized columns": (
        *(True, RULE(BLOCKS, standardize=True), X, X.mean(axis=0)),
        X.std(axis=0) * of_blocks(ABOUT / X.std(axis=0)),
    ),
    "a constant block": (
        *(True, RULE(BLOCKS), FLAT, FLAT.mean(axis=0)),
        np.where(FLAT[0] == FLAT[1], 1.0, of_blocks(FLAT - FLAT.mean(axis=0))),
    ),
    "alleles": (True, bp.scales.Patterson(), ALLELES, 2 * SHARES, PATTERSON),
    "alleles of tetraploids": (True, bp.scales.Patterson(ploidy=4), 2 * ALLELES, 4 * SHARES, PATTERSON),
}
GAUSSIAN = bp.sketches.Gaussian(D)  # as wide as the rows: exact
MODELS: dict[str, Any] = {
    "covariance": lambda **given: bp.PCA(K, solver="covariance", **given),
    "dot": lambda **given: bp.PCA(K, solver="dot", **given),
    "krylov": lambda **given: bp.PCA(K, solver="krylov", tol=1e-9, **given),
    **{core: (lambda core=core, **given: bp.ApproximatePCA(K, GAUSSIAN, approximation=core, **given))
       for core in ("nystrom", "tutorial", "ritz")},
}  # fmt: skip
STATES = ("covariance", "nystrom", "tutorial")  # of one read
EXACT = ("covariance", "dot", "krylov")
PAIRS = [(name, case) for name in MODELS for case in CASES if "block" not in case or name in EXACT]
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def standardized(case: str) -> Array:
    """The centred and scaled rows."""
    _, _, rows, centre, divisors = CASES[case]
    return (rows - centre) / divisors


def expected(name: str, case: str) -> Array:
    """The leading eigenvalues, by NumPy; of a sketch that is not exact, what it makes of the standardized rows."""
    Y = standardized(case)
    if name == "tutorial":
        learned = CASES[case][1] is True  # a learned scale multiplies the sketch as well
        rows = Y * CASES[case][4] if learned else Y
        return np.asarray(MODELS[name](center=False, scale=learned).fit(rows).explained_variance_)
    return np.linalg.eigvalsh(Y.T @ Y / (N - 1))[::-1][:K]


def fitted(name: str, case: str, rows: Any = None) -> Any:
    center, scale, given, *_ = CASES[case]
    return MODELS[name](center=center, scale=scale).fit(given if rows is None else rows)


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_variances_and_scores_are_those_of_the_standardized_rows(name: str, case: str) -> None:
    model, Y = fitted(name, case), standardized(case)
    _, _, rows, centre, divisors = CASES[case]
    np.testing.assert_allclose(model.explained_variance_, expected(name, case), rtol=1e-6)
    np.testing.assert_allclose(model.total_variance_, (Y**2).sum() / (N - 1), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, centre, atol=1e-12)
    np.testing.assert_allclose(np.ones(D) if model.scale_ is None else model.scale_, divisors, rtol=1e-12)
    np.testing.assert_allclose(model.transform(rows), Y @ model.components_.T, atol=1e-4 if name == "dot" else 1e-5)


@pytest.mark.parametrize("form", [np.asarray, csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("outlier", [1e5, 1e7])
def test_an_outlier_that_no_sample_holds_costs_a_read_and_no_digits(outlier: float, form: Any) -> None:
    """The deviation of its column is guessed that many times too small: the first product is along that column."""
    rng = np.random.default_rng(11)
    rows = np.where(rng.random((40, 300)) < 0.04, rng.integers(1, 9, (40, 300)), 0).astype("f8")
    rows[3, 8] = outlier
    pca = bp.PCA(4, solver="krylov", tol=1e-8, scale=True, random_state=0).fit(form(rows))
    deviations = rows.std(axis=0)
    Y = (rows - rows.mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    np.testing.assert_allclose(pca.explained_variance_, np.linalg.eigvalsh(Y @ Y.T / 39)[::-1][:4], rtol=1e-9)
    assert pca.converged_


@pytest.mark.parametrize("solver", ["dot", "krylov"])
@pytest.mark.parametrize("case", ["both given", "alleles", "deviations about a given centre", "blocks"])
def test_stores_chunked_in_columns_are_standardized_alike(case: str, solver: str, tmp_path: Path) -> None:
    rows = CASES[case][2]
    model = fitted(solver, case, stored(tmp_path, rows, (N, 2)))
    np.testing.assert_allclose(model.explained_variance_, expected(solver, case), rtol=1e-5)
    np.testing.assert_allclose(model.scale_, CASES[case][4], rtol=1e-9)


@pytest.mark.parametrize(("name", "case"), [pair for pair in PAIRS if pair[0] in STATES])
def test_added_rows_and_merged_models_are_standardized_alike(name: str, case: str) -> None:
    center, scale, rows, *_ = CASES[case]
    model = MODELS[name](center=center, scale=scale)
    if not hasattr(model, "partial_fit"):  # a tutorial sketch needs a learned scale before its read
        assert name == "tutorial"
        return
    parts = [clone(model).fit(part) for part in (rows[:50], rows[50:])]
    grown = clone(model).fit(rows[:50]).partial_fit(rows[50:])
    for found in (grown, bp.merge(*parts)):
        np.testing.assert_allclose(found.explained_variance_, expected(name, case), rtol=1e-6)
        np.testing.assert_allclose(found.mean_, CASES[case][3], atol=1e-12)
    other = clone(model).set_params(center=CENTRE + 1, scale=False).fit(rows[50:])
    with pytest.raises(ValueError, match="Fit both with the same parameters"):
        bp.merge(parts[0], other)
    for changed in ({"center": CENTRE + 1, "scale": False}, {"preprocess": bp.preprocessing.L2()}):
        with pytest.raises(ValueError, match="changed after the fit"):
            clone(model).fit(rows[:50]).set_params(**changed).partial_fit(rows[50:])


@pytest.mark.parametrize("case", CASES)
def test_kept_statistics_are_of_rows_about_the_given_centre_and_divided_by_the_given_scale(case: str) -> None:
    center, scale, rows, *_ = CASES[case]
    model = bp.PCA(K, solver="covariance", center=center, scale=scale).fit(rows)
    standardization, state = standardization_of(model, D), model._result.state
    np.testing.assert_allclose(standardization.shift + standardization.divisors * state.mean, rows.mean(axis=0))
    variances = np.diagonal(state.scatter) / (N - 1) * standardization.divisors**2
    np.testing.assert_allclose(variances, rows.var(axis=0, ddof=1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["given scale", "latitudes", "alleles"])
@pytest.mark.parametrize("name", ["covariance", "dot", "nystrom"])
def test_feature_correlations_are_those_of_the_columns_whatever_they_are_divided_by(name: str, case: str) -> None:
    model, deviations = fitted(name, case), standardized(case).std(axis=0, ddof=1)
    varies = deviations > 0
    expected = model.loadings_[varies] / deviations[varies, None]
    np.testing.assert_allclose(model.feature_correlations()[varies], expected, rtol=1e-9)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        lambda folder: stored(folder, X, (N, 2)),  # read by columns
        lambda folder: bp.open(csr_matrix(X)),
        lambda folder: da.from_array(X.astype("f4"), chunks=(25, D)),
    ],
    ids=["columns", "sparse", "float32"],
)
def test_blocks_of_a_dot_matrix_are_divided_in_its_reads_whatever_the_rows_are(
    given: Any, standardize: bool, tmp_path: Path
) -> None:
    weights, rows = np.arange(N) % 3, given(tmp_path)
    model = bp.PCA(K, solver="dot", scale=RULE(BLOCKS, standardize)).fit(rows, sample_weight=weights)
    plain = bp.PCA(K, solver="dot", scale=standardize).fit(rows, sample_weight=weights)
    assert model.provenance_.reads == plain.provenance_.reads
    truth = bp.PCA(K, solver="covariance", scale=RULE(BLOCKS, standardize)).fit(np.repeat(X, weights, axis=0))
    for name in ("scale_", "explained_variance_", "components_", "mean_", "total_variance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(truth, name), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", EXACT)
def test_blocks_cost_no_read_but_for_krylov_and_have_shares_in_components(name: str, tmp_path: Path) -> None:
    model = fitted(name, "blocks")
    if name != "krylov":
        assert model.provenance_.reads == model.plan(X).passes == MODELS[name]().plan(X).passes
    assert ("each of 3 blocks" in model.plan(X).reason) == (name != "covariance")
    model.save(tmp_path / "m.zarr")
    shares = bp.load(tmp_path / "m.zarr").block_contributions_
    assert list(shares) == list(BLOCKS)
    for block, own in BLOCKS.items():
        np.testing.assert_allclose(shares[block], (model.components_[:, own] ** 2).sum(axis=1))
    np.testing.assert_allclose(sum(shares.values()), 1)
    assert 1 < model.explained_variance_[0] < len(BLOCKS)
    with pytest.raises(AttributeError, match="has no blocks"):
        _ = fitted(name, "given scale").block_contributions_
    ends = bp.PCA(1, solver=name, scale=RULE({"a": slice(4), "b": slice(4, None)})).fit(X)
    np.testing.assert_allclose(ends.scale_[4:], np.linalg.norm(ABOUT[:, 4:], 2) / np.sqrt(N - 1), rtol=1e-3)
    assert repr(ends.scale) == repr(eval(repr(ends.scale), {"Blocks": RULE}))
    ends.save(tmp_path / "ends.zarr")
    assert list(bp.load(tmp_path / "ends.zarr").block_contributions_) == ["a", "b"]
    chosen = bp.PCA(bp.rules.ParallelAnalysis(), solver=name, scale=RULE(BLOCKS)).fit(X)
    np.testing.assert_allclose(chosen.scale_, model.scale_, rtol=1e-6)


def test_folds_have_the_blocks_of_the_others() -> None:
    def errors(scale: Any, rows: Array) -> Any:
        return bp.PCA(bp.rules.CrossValidated(3), solver="covariance", scale=scale).fit(rows).cv_errors_

    found, folds = errors(RULE(BLOCKS), X), errors(False, X)
    assert found.shape == folds.shape
    assert (found[:, 0] < 3 * len(BLOCKS)).all()  # in units of the blocks
    np.testing.assert_allclose(errors(RULE(BLOCKS), X * np.where(np.arange(D) < 4, 100.0, 0.01)), found, rtol=1e-7)


@pytest.mark.parametrize("case", ["both given", "latitudes", "alleles", "the mean"])
def test_frechet_distances_do_not_depend_on_centre_and_scale(case: str) -> None:
    center, scale, rows, *_ = CASES[case]
    model = bp.PCA(K, solver="covariance", center=center, scale=scale).fit(rows)
    other = bp.PCA(K, solver="covariance", center=CENTRE).fit(rows[:60] + 1.0)
    plain = [bp.PCA(K, solver="covariance").fit(part) for part in (rows, rows[:60] + 1.0)]
    np.testing.assert_allclose(frechet_distance(model, other), frechet_distance(*plain), rtol=1e-9)
    with pytest.raises(ValueError, match=r"preprocessed by \(\) and \(L2.*cannot be compared"):
        frechet_distance(plain[0], bp.PCA(K, preprocess=bp.preprocessing.L2()).fit(X))


@pytest.mark.parametrize("case", CASES)
def test_all_components_give_the_rows_back(case: str) -> None:
    center, scale, rows, *_ = CASES[case]
    model = bp.PCA(center=center, scale=scale, whiten=bp.scales.Whitening(0.3, epsilon=0.1)).fit(rows)
    np.testing.assert_allclose(model.inverse_transform(model.transform(rows)), rows, atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"center": CENTRE[:4]}, ValueError, "center has 4 numbers, but X has 9 columns"),
        ({"center": np.where(np.arange(D) == 2, np.nan, 0.0)}, ValueError, "center is nan in column 2"),
        ({"center": CENTRE, "scale": bp.scales.Patterson()}, ValueError, "from the mean, but center is a given vector"),
        ({"scale": np.arange(D)}, ValueError, "scale is 0.0 in column 0"),
        ({"scale": bp.scales.CosLatitude([0, 1])}, ValueError, "scale has 2 numbers, but X has 9 columns"),
        ({"scale": RULE(["a", "b"])}, ValueError, "Blocks have 2 columns, but X has 9"),
        ({"scale": RULE({"a": slice(9), "b": slice(9, None)})}, ValueError, "Blocks have 10 columns, but X has 9"),
        ({"scale": CENTRE[:, None]}, TypeError, "a vector of 9 numbers"),
        ({"whiten": 0.5}, TypeError, r"whiten = 0.5 is a float; True, False or a rule such as bp.scales.Whitening"),
        ({"preprocess": "l2"}, TypeError, "preprocess = 'l2' is not known"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_rejected_unread(
    parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bp.PCA(2, **parameters).fit(unreadable(N, D))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bp.scales.CosLatitude([0, 91]), ValueError, "from 0 to 91"),
        (lambda: bp.scales.CosLatitude([[0.0]]), ValueError, r"latitudes of shape \(1, 1\)"),
        (lambda: RULE({"a": slice(0, 3), "b": range(2, 4)}), ValueError, "column 2 is in 2 blocks"),
        (lambda: RULE({"a": slice(1, 3)}), ValueError, "column 0 is in 0 blocks"),
        (lambda: RULE({"a": slice(2, None)}), ValueError, "column 0 is in 0 blocks"),
        (lambda: RULE({"a": slice(2), "b": slice(2, None), "c": slice(3, 5)}), TypeError, "slices of columns by name"),
        (lambda: RULE({"a": slice(2), "b": slice(-2, None)}), TypeError, "slices of columns by name"),
        (lambda: RULE("ab"), TypeError, "slices of columns by name"),
        (lambda: RULE([1, 2]), TypeError, "slices of columns by name"),
        (lambda: bp.ApproximatePCA(2, scale=RULE(BLOCKS)).fit(X), ValueError, "a sketch does not provide. Use PCA"),
        (lambda: bp.scales.Patterson(0), ValueError, "ploidy = 0"),
        (lambda: bp.scales.Patterson(2.0), TypeError, "ploidy = 2.0 is a float"),
        (lambda: bp.scales.Whitening(power=-1), ValueError, "power = -1"),
        (lambda: bp.scales.Whitening(epsilon="0"), TypeError, "epsilon = '0' is a str"),
        (lambda: bp.scales.Whitening(l2=1), TypeError, "l2 = 1 is an int"),
        (lambda: bp.PCA(2, scale=bp.scales.Patterson()).fit(X - 9), ValueError, "row 0, column 0 of .* holds -8"),
    ],
)
def test_invalid_rules_are_rejected(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


RULES = [
    True,
    bp.scales.Whitening(),
    bp.scales.Whitening(0.25),
    bp.scales.Whitening(0.5, 0.1),
    bp.scales.Whitening(0.0, 0.3),
    bp.scales.Whitening(1, l2=True),
]


@pytest.mark.parametrize("whiten", RULES, ids=repr)
def test_whitening_divides_scores_by_powers_of_the_variances(whiten: Any) -> None:
    rule = bp.scales.Whitening() if whiten is True else whiten
    plain, model = bp.PCA(K).fit(X), bp.PCA(K, whiten=whiten).fit(X)
    lambdas = plain.explained_variance_
    scores = plain.transform(X) / (lambdas + rule.epsilon * lambdas[0]) ** rule.power
    if rule.l2:
        scores /= np.linalg.norm(scores, axis=1, keepdims=True)
    np.testing.assert_allclose(model.transform(X), scores, atol=1e-12)
    np.testing.assert_allclose(model.score_samples(X), plain.score_samples(X), atol=1e-12)
    if rule.l2:
        with pytest.raises(ValueError, match=r"is not kept\. Fit with l2=False"):
            model.inverse_transform(scores)
        return
    np.testing.assert_allclose(model.inverse_transform(scores), plain.inverse_transform(plain.transform(X)), atol=1e-12)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("unit", [1e-140, 1e-60, 1.0, 1e60, 1e140])
def test_rows_come_back_from_float32_codes_in_any_unit(unit: float, scale: bool) -> None:
    model = bp.PCA(D, whiten=True, scale=scale).fit(X * unit)
    codes = model.transform(X * unit).astype("f4")
    for given in (codes, da.from_array(codes, chunks=(50, D))):
        found = model.inverse_transform(given)
        assert found.dtype == np.asarray(found).dtype == ("f4" if unit == 1 else "f8")
        np.testing.assert_allclose(np.asarray(found, "f8") / unit, X, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_powers_of_variances_beyond_float64_are_named(unit: float) -> None:
    for rule in (bp.scales.Whitening(power=2), bp.scales.Whitening(power=2, epsilon=0.1, l2=True)):
        model = bp.PCA(K, whiten=rule).fit(X * unit)
        with pytest.raises(ValueError, match=r"powers of variances of .* Divide the data by a constant first"):
            model.transform(X * unit)


def test_scores_along_axes_of_rounding_are_zero_whatever_the_rule() -> None:
    flat = np.hstack([X[:, :3], X[:, :3]])
    for rule in (bp.scales.Whitening(0.3, 1e-3), bp.scales.Whitening(1.0, l2=True)):
        scores = bp.PCA(6, whiten=rule).fit(flat).transform(flat)
        assert (scores.any(axis=0) == (np.arange(6) < 3)).all()


@pytest.mark.parametrize("removed", [0, [0, 2], [1]])
@pytest.mark.parametrize("case", ["given centre", "both given", "given scale"])
@pytest.mark.parametrize("name", ["covariance", "tutorial"])
def test_removed_components_leave_the_mean_and_the_residual(name: str, case: str, removed: Any, tmp_path: Path) -> None:
    model = fitted(name, case).set_params(whiten=True)
    A = model.components_[np.atleast_1d(removed)]
    Y = (X - CASES[case][3]) / CASES[case][4]
    expected = X - (Y @ np.linalg.pinv(A) @ A) * CASES[case][4]
    found = model.remove_components(X, removed)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    lazy = model.remove_components(da.from_array(X.astype("f4"), chunks=(50, D)), removed, out=tmp_path / "out.zarr")
    assert isinstance(lazy, da.Array)
    assert (lazy.shape, lazy.dtype) == (X.shape, np.float32)
    np.testing.assert_allclose(lazy, expected, atol=1e-4)


@pytest.mark.parametrize("wrong", [K, -1, [0, 0], 0.5, [], [[0]], True])
def test_only_components_can_be_removed(wrong: Any) -> None:
    if wrong == []:
        assert np.array_equal(bp.PCA(K).fit(X).remove_components(X, np.zeros(0, int)), X)
        return
    with pytest.raises(
        ValueError, match=r"but there are 3\. Give numbers from 0 to 2, or names such as 'pca0', each once"
    ):
        bp.PCA(K).fit(X).remove_components(X, wrong)


def test_rows_with_missing_values_remain_so() -> None:
    rows = X.copy()
    rows[3, 1] = np.nan
    model = bp.PCA(K, nan_policy="omit", center=CENTRE, preprocess=bp.preprocessing.Power()).fit(rows)
    assert model.n_omitted_ == 1
    assert np.isnan(model.remove_components(rows, 0)[3]).all()
    with pytest.raises(bp.errors.NonFiniteError, match=r"1 NaN or infinite value in 1 row .* in row 3, column 1"):
        model.set_params(nan_policy="raise").transform(rows)


def test_a_fit_of_given_values_takes_one_read_and_the_planned_memory() -> None:
    model = bp.PCA(K, solver="covariance", center=CENTRE, scale=SCALE, preprocess=bp.preprocessing.Power())
    many = np.tile(X, (50, 1))  # whose blocks take more than the solve
    plan = model.plan(open_array(many))
    assert plan.passes == model.fit(open_array(many)).provenance_.reads == 1
    plain = bp.PCA(K, solver="covariance").plan(open_array(many))
    assert plan.peak_bytes > plain.peak_bytes
    assert plan.flops > plain.flops


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("solver", ["covariance", "dot", "krylov"])
def test_a_given_centre_overwrites_no_rows_of_the_user(solver: str, dtype: str) -> None:
    X = np.random.default_rng(0).standard_normal((120, 30)).astype(dtype)
    before, lazy = X.copy(), da.from_array(X, chunks=(40, 30))
    for rows in (X, lazy, lazy.persist()):
        model = bp.PCA(2, solver=solver, center=np.full(30, 0.5), scale=np.full(30, 2.0)).fit(rows)
        np.asarray(model.transform(rows))
        np.testing.assert_array_equal(X, before)
        np.testing.assert_array_equal(np.asarray(rows), before)


@pytest.mark.parametrize("model", [bp.PCA(2, solver="covariance"), bp.PCA(2, solver="krylov"), bp.ApproximatePCA(2)])
def test_a_column_that_varies_too_little_beside_its_mean_to_be_scaled_is_named(model: Any) -> None:
    n, rng = 40_000, np.random.default_rng(0)
    X = np.column_stack([np.full(n, 2.0**31 + 0.3), 2.0**31 + 1e-3 * rng.normal(size=n), rng.normal(size=n)])
    with pytest.warns(bp.errors.ApproximationWarning, match=r"column 1 varies by less .* not scaled \(1 such column\)"):
        assert clone(model).set_params(scale=True).fit(X).scale_[:2].tolist() == [1, 1]
    assert clone(model).set_params(scale=True).fit(X - [0, 2.0**31, 0]).scale_[1] == pytest.approx(1e-3, rel=0.1)
