"""Every sketch against its matrix, its moments and its promises: a new sketch is one row of SKETCHES."""

import json
import math
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from bigpca.blas import one_blas_thread
from bigpca.costs import BlockForm
from bigpca.errors import ModelFormatError
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, SparseSign, sketch_from
from bigpca.sketches.base import CACHE, FIXED_BYTES
from tests.peaks import traced_peak

# A sketch and the columns it is applied to; small enough for thousands of seeds.
SKETCHES = {
    "gaussian": (Gaussian(7), 24),
    "gaussian of one column": (Gaussian(1), 1),
    "sparse sign": (SparseSign(7, nnz=3), 24),
    "sparse sign, dense": (SparseSign(5, nnz=5), 24),
    "feature hash": (FeatureHash(7), 24),
    "feature hash, 3 hashes": (FeatureHash(7, n_hashes=3), 24),
    "hash kernel": (FeatureHash(7, signed=False), 24),
    "hash kernel, 3 hashes": (FeatureHash(7, n_hashes=3, signed=False), 24),
    "hash kernel, 2 columns": (FeatureHash(2, signed=False), 5),
    "srht": (SRHT(7), 24),
    "srht of 2 in 4": (SRHT(2), 3),
    "srht of a power of two": (SRHT(16), 32),
    "srht, square": (SRHT(16), 16),
    "downsample": (Downsample((4, 6), (2, 3)), 24),
    "downsample, fractional": (Downsample((2, 3, 4), (2, 2, 3)), 24),
}
# The same kinds at sizes where parts, tiles and the cache show.
LARGE = {
    "gaussian": (Gaussian(100), 20_000),
    "sparse sign": (SparseSign(100), 20_000),
    "feature hash": (FeatureHash(100, n_hashes=2), 20_000),
    "srht": (SRHT(100), 20_000),
    "downsample": (Downsample((100, 100, 2), (10, 5, 2)), 20_000),
}
SEEDS = 1000
SIGMAS = (
    5.0  # with a few hundred comparisons per sketch, a right formula fails once in 5,000 tables; the seeds are fixed
)

each_sketch = pytest.mark.parametrize(("sketch", "d"), SKETCHES.values(), ids=SKETCHES.keys())
each_large = pytest.mark.parametrize(("sketch", "d"), LARGE.values(), ids=LARGE.keys())
each_form = pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(autouse=True)
def _cold_cache():
    CACHE.clear()
    yield
    CACHE.clear()


def block(b, d, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal((b, d)).astype(dtype)


def rounding(rows, W):
    """Bound on the error of rows @ W summed in any order: d eps sum_i |x_i w_i| (Higham 2002, sec. 3.1), and the
    scale's.
    """
    return (rows.shape[1] + 4) * np.finfo(rows.dtype).eps * (np.abs(rows).astype(np.float64) @ np.abs(W))


@cache
def matrices_of_many_seeds(sketch, d):
    return np.stack([replace(sketch, random_state=seed).matrix(d) for seed in range(SEEDS)])


def pairs(d):
    """Pairs of vectors that part the terms of the variance: equal, orthogonal, disjoint, opposed, spiky, with a
    mean.
    """
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, d))
    spike = np.zeros(d)
    spike[d // 2] = 1
    even = np.arange(d) % 2 == 0
    left = [x, x, x, x * even, x, spike, spike + 0.1 * x, x + 1]
    right = [x, y, -x, y * ~even, y - (x @ y) / (x @ x) * x, spike, spike, y + 1]
    return np.array(left), np.array(right)


def moments(sketch, x, y):
    """Bias and variance of <W'x, W'y> over seeds, for pairs of rows: the formulas of the docstrings."""
    dots, squares = (x * y).sum(axis=1), (x**2 * y**2).sum(axis=1)
    both = (x**2).sum(axis=1) * (y**2).sum(axis=1) + dots**2
    if isinstance(sketch, Downsample):
        return (sketch.apply(x) * sketch.apply(y)).sum(axis=1) - dots, 0 * dots
    if isinstance(sketch, Gaussian):
        return 0 * dots, both / sketch.q
    if isinstance(sketch, SparseSign):
        return 0 * dots, (both - 2 * squares) / sketch.q
    if isinstance(sketch, SRHT):
        padded = 1 << (x.shape[1] - 1).bit_length()
        return 0 * dots, (padded - sketch.q) / (sketch.q * max(1, padded - 1)) * (both - 2 * squares)
    variance = (both - 2 / sketch.n_hashes * squares) / sketch.q
    if sketch.signed:
        return 0 * dots, variance
    return (sketch.n_hashes * x.sum(axis=1) * y.sum(axis=1) - dots) / sketch.q, variance * (1 - 1 / sketch.q)


@each_sketch
@each_dtype
@each_form
def test_apply_is_the_product_with_the_matrix(sketch, d, dtype, form):
    rows, W = block(40, d, dtype), sketch.matrix(d)
    rows *= np.arange(rows.size).reshape(rows.shape) % 3 > 0
    Z = sketch.apply(form(rows))
    assert Z.dtype == dtype
    assert Z.shape == (40, sketch.width(d)) == (40, W.shape[1])
    assert (np.abs(Z - rows.astype(np.float64) @ W) <= rounding(rows, W)).all()


@each_large
@each_dtype
@each_form
def test_apply_is_the_product_over_many_parts_and_tiles(sketch, d, dtype, form):
    rows, W = block(50, d, dtype), sketch.matrix(d)
    assert (np.abs(sketch.apply(form(rows)) - rows.astype(np.float64) @ W) <= rounding(rows, W)).all()


@each_large
@pytest.mark.parametrize("arrange", [np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2]])
def test_the_layout_of_the_rows_does_not_matter(sketch, d, arrange):
    rows = block(20, d)
    difference = np.abs(sketch.apply(arrange(rows)) - sketch.apply(rows))
    assert (difference <= 2 * rounding(rows, sketch.matrix(d))).all()


@each_large
@each_dtype
def test_a_row_does_not_depend_on_its_block_beyond_rounding(sketch, d, dtype):
    rows = block(37, d, dtype)
    whole = sketch.apply(rows)
    parts = np.concatenate([sketch.apply(rows[:1]), sketch.apply(rows[1:20]), sketch.apply(rows[20:])])
    assert (np.abs(whole - parts) <= 2 * rounding(rows, sketch.matrix(d))).all()


@each_sketch
def test_an_empty_block_gives_an_empty_one(sketch, d):
    assert sketch.apply(np.zeros((0, d), np.float32)).shape == (0, sketch.width(d))


@each_sketch
def test_the_mean_of_W_W_is_the_identity_plus_the_stated_bias(sketch, d):
    left, right = np.repeat(np.eye(d), d, axis=0), np.tile(np.eye(d), (d, 1))
    bias, variance = moments(sketch, left, right)
    expected, error = np.eye(d) + bias.reshape(d, d), np.sqrt(variance / SEEDS).reshape(d, d)
    W = matrices_of_many_seeds(sketch, d)
    mean = np.tensordot(W, W, [(0, 2), (0, 2)]) / SEEDS
    assert (np.abs(mean - expected) <= SIGMAS * error + 1e-12).all()


@each_sketch
def test_dot_products_have_the_stated_mean_and_variance(sketch, d):
    x, y = pairs(d)
    W = matrices_of_many_seeds(sketch, d)
    dots = np.einsum("spq,spq->sp", x @ W, y @ W)
    mean, variance = dots.mean(axis=0), dots.var(axis=0, ddof=1)
    bias, stated = moments(sketch, x, y)
    unit = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    expected = np.einsum("pi,pi->p", x, y) + bias
    assert (np.abs(mean - expected) <= SIGMAS * np.sqrt(stated / SEEDS) + 1e-12 * unit).all()
    error_of_variance = np.sqrt(np.mean((dots - mean) ** 4, axis=0) / SEEDS)
    assert (np.abs(variance - stated) <= SIGMAS * error_of_variance + 1e-12 * unit**2).all()


@each_sketch
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_of_the_matrix_have_the_same_bits_however_they_are_cut(sketch, d, data):
    start = data.draw(st.integers(0, d))
    stop = data.draw(st.integers(start, d))
    assert np.array_equal(sketch.matrix(d, start, stop), sketch.matrix(d)[start:stop])


@each_large
def test_rows_of_a_large_matrix_have_the_same_bits_however_they_are_cut(sketch, d):
    whole = sketch.matrix(d)
    for start, stop in [(8191, 8193), (4096, 17_000), (19_999, 20_000), (0, 8192)]:
        assert np.array_equal(sketch.matrix(d, start, stop), whole[start:stop])


@each_large
@each_dtype
def test_threads_get_the_same_bits(sketch, d, dtype):
    rows = block(20, d, dtype)
    with one_blas_thread():
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(sketch.apply, [rows] * 8))
        CACHE.clear()
        alone = sketch.apply(rows)
    assert all(np.array_equal(Z, alone) for Z in found)


@each_large
@each_dtype
def test_what_is_made_again_has_the_bits_of_what_was_kept(sketch, d, dtype, monkeypatch):
    rows = block(20, d, dtype)
    kept = sketch.apply(rows)
    assert 0 < CACHE.nbytes == sketch.cached_bytes(d, rows.itemsize)
    monkeypatch.setattr(CACHE, "limit", 0)
    CACHE.clear()
    assert np.array_equal(sketch.apply(rows), kept)
    assert CACHE.nbytes == sketch.cached_bytes(d, rows.itemsize) == 0


@each_large
@each_dtype
@pytest.mark.parametrize("limit", [None, 0])
def test_apply_takes_no_more_memory_than_it_says_and_not_far_less(sketch, d, dtype, limit, monkeypatch):
    if limit is not None:
        monkeypatch.setattr(CACHE, "limit", limit)
    rows = block(64, d, dtype)
    sketch.apply(rows[:1, :])

    def apply() -> None:
        CACHE.clear()
        sketch.apply(rows)

    peak = traced_peak(apply)
    said = sketch.cost(BlockForm(d, len(rows), itemsize=rows.itemsize)).bytes
    assert peak <= said <= 3 * peak + FIXED_BYTES


@each_large
def test_what_stays_cached_is_no_more_than_said_and_not_far_less(sketch, d):
    tracemalloc.start()
    try:
        before = array_bytes()
        sketch.apply(np.zeros((1, d)))
        held = array_bytes() - before
    finally:
        tracemalloc.stop()
    assert held <= sketch.cached_bytes(d, 8) <= 2 * held + 8192


def array_bytes():
    """Bytes of NumPy's arrays that are traced: not the small objects that threads of earlier tests make meanwhile."""
    snapshot = tracemalloc.take_snapshot()
    arrays = snapshot.filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    return sum(trace.size for trace in arrays.traces)


@each_sketch
def test_another_seed_is_another_sketch_unless_nothing_is_random(sketch, d):
    other = replace(sketch, random_state=1)
    random = not isinstance(sketch, Downsample)
    assert np.array_equal(sketch.matrix(d), other.matrix(d)) != random
    assert other != sketch
    assert other.describe() != sketch.describe()


@each_sketch
def test_a_pickled_sketch_is_the_same_and_small(sketch, d):
    sketch.apply(block(3, d))
    sent = pickle.dumps(sketch)
    received = pickle.loads(sent)
    assert received == sketch
    assert hash(received) == hash(sketch)
    assert np.array_equal(received.apply(block(3, d)), sketch.apply(block(3, d)))
    assert len(sent) < 500


@each_sketch
def test_a_description_is_json_and_makes_the_sketch_again(sketch, d):
    sketch = replace(sketch, random_state=2**80)
    assert sketch_from(json.loads(json.dumps(sketch.describe()))) == sketch


@pytest.mark.parametrize(("q", "nnz"), [(5, 1), (5, 5), (40, 8), (300, 100)])
def test_sparse_signs_stand_at_distinct_places_and_all_places_are_as_likely(q, nnz):
    d = 2000
    W = SparseSign(q, nnz=nnz).matrix(d)
    assert (np.count_nonzero(W, axis=1) == nnz).all()
    np.testing.assert_allclose(np.abs(W[W != 0]), 1 / math.sqrt(nnz), rtol=1e-15)
    share = nnz / q
    error = math.sqrt(d * share * (1 - share))
    assert (np.abs(np.count_nonzero(W, axis=0) - d * share) <= SIGMAS * error).all()


def test_every_subset_of_places_is_as_likely():
    d, p = 20_000, 1 / math.comb(5, 2)
    counts = np.unique(SparseSign(5, nnz=2).matrix(d) != 0, axis=0, return_counts=True)[1]
    assert len(counts) == math.comb(5, 2)
    assert (np.abs(counts - d * p) <= SIGMAS * math.sqrt(d * p * (1 - p))).all()


@pytest.mark.parametrize(("q", "d"), [(1, 1), (2, 2), (20, 64), (64, 64), (100, 4096)])
def test_columns_of_srht_are_orthogonal_where_nothing_is_padded(q, d):
    W = SRHT(q).matrix(d)
    np.testing.assert_allclose(W.T @ W, d / q * np.eye(q), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize(("q", "d"), [(5, 5), (9, 100), (64, 65), (1000, 1025)])
@pytest.mark.parametrize("few_bytes", [False, True])
def test_srht_works_for_any_d_and_any_split_of_the_hadamard_matrix(q, d, few_bytes, monkeypatch):
    if few_bytes:
        monkeypatch.setattr("bigpca.sketches.matrices.HADAMARD_BYTES", 4096)
    W, rows = SRHT(q).matrix(d), block(3, d)
    assert (np.abs(SRHT(q).apply(rows) - rows @ W) <= rounding(rows, W)).all()
    np.testing.assert_allclose(np.abs(W), 1 / math.sqrt(q), rtol=1e-15)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Gaussian(0), ValueError, "q = 0 is below 1, but an integer of at least 1 is required"),
        (lambda: Gaussian(-3), ValueError, "q = -3 is below 1"),
        (lambda: Gaussian(2.0), TypeError, r"q = 2\.0 is a float, but an integer"),
        (lambda: SRHT(True), TypeError, "q = True is a bool"),
        (lambda: FeatureHash("7"), TypeError, "q = '7' is a str"),
        (lambda: Gaussian(3, random_state=-1), ValueError, "random_state = -1 is negative"),
        (lambda: Gaussian(3, random_state=None), TypeError, "random_state = None is of type NoneType"),
        (
            lambda: SparseSign(7),
            ValueError,
            "nnz = 8 distinct places were requested, but q = 7 columns have only 7. Use",
        ),
        (lambda: SparseSign(7, nnz=0), ValueError, "nnz = 0 is below 1"),
        (lambda: FeatureHash(7, n_hashes=0), ValueError, "n_hashes = 0 is below 1"),
        (lambda: FeatureHash(7, signed=1), TypeError, "signed = 1 is an int; True or False was expected"),
        (lambda: Downsample(24, (2, 3)), TypeError, "shape = 24 is an int, but a tuple of sizes is required"),
        (lambda: Downsample((4, 6), (2, 0)), ValueError, "each size of to = 0 is below 1"),
        (lambda: Downsample((4, 6.0), (2, 3)), TypeError, r"each size of shape = 6\.0 is a float"),
        (lambda: Downsample((4, 6), (2, 7)), ValueError, r"to = \(2, 7\) does not shrink shape = \(4, 6\)"),
        (
            lambda: Downsample((4, 6), (2,)),
            ValueError,
            r"to = \(2,\) does not shrink shape .* the same number of sizes is required",
        ),
        (lambda: Downsample((), ()), ValueError, r"to = \(\) does not shrink"),
    ],
)
def test_impossible_parameters_are_rejected_with_the_numbers(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("use", ["width", "matrix", "cost", "apply", "cached_bytes"])
@pytest.mark.parametrize(
    "sketch", [Gaussian(7), SparseSign(7, nnz=2), FeatureHash(7), SRHT(7), Downsample((2, 4), (1, 2))]
)
def test_data_that_does_not_suit_is_rejected_whatever_is_asked(sketch, use):
    calls = {
        "apply": lambda d: sketch.apply(np.zeros((2, d))),
        "cost": lambda d: sketch.cost(BlockForm(d, 2)),
        "cached_bytes": lambda d: sketch.cached_bytes(d, 8),
    }
    call = calls.get(use) or getattr(sketch, use)
    call(8)
    numbers = r"q = 7 is over the 6 columns of the data.*Use q <= 6"
    if isinstance(sketch, Downsample):
        numbers = r"shape = \(2, 4\) has 8 numbers, but the data has 6 columns"
    with pytest.raises(ValueError, match=numbers):
        call(6)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (
            np.zeros((2, 8), np.float16),
            TypeError,
            "rows are float16, but a sketch requires an ndarray of float32 or float64",
        ),
        (np.zeros((2, 8), np.int64), TypeError, "rows are int64"),
        (np.zeros((2, 8), ">f8" if np.little_endian else "<f8"), TypeError, "rows are [<>]f8"),
        ([[1.0] * 8], TypeError, "rows are list"),
        (np.zeros(8), ValueError, r"rows have shape \(8,\), but a sketch requires \(b, d\)"),
    ],
)
def test_rows_of_another_kind_are_rejected(rows, error, message):
    with pytest.raises(error, match=message):
        Gaussian(4).apply(rows)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 9)])
def test_rows_of_W_beyond_it_are_rejected(start, stop):
    with pytest.raises(ValueError, match=f"rows {start}:{stop} of W were requested, but it has 8"):
        Gaussian(4).matrix(8, start, stop)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"sketch": "CountSketch", "q": 3, "random_state": 0},
            r"CountSketch' is not a sketch of this version .*Gaussian",
        ),
        ({"q": 3}, "None is not a sketch"),
        ({"sketch": ["Gaussian"]}, "is not a sketch"),
        (
            {"sketch": "Gaussian", "q": 3},
            r"Gaussian is described by \['q'\], but \['q', 'random_state'\] were expected",
        ),
        ({"sketch": "Gaussian", "q": 3, "random_state": 0, "p": 1}, r"described by \['p', 'q', 'random_state'\]"),
        (
            {"sketch": "Gaussian", "q": 0, "random_state": 0},
            "Gaussian is described by invalid values: q = 0 is below 1",
        ),
        ({"sketch": "Gaussian", "q": "3", "random_state": 0}, "invalid values: q = '3' is a str"),
    ],
)
def test_a_description_that_is_none_is_rejected(description, message):
    with pytest.raises(ModelFormatError, match=message):
        sketch_from(description)
