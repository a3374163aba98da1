"""Random numbers depend on seed, stream and absolute row alone, and are what they are said to be."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigpca.seeds import BLOCK, check_seed, integers, normals, signs, uniforms

KINDS = {
    "normals f4": lambda seed, stream, start, stop, width: normals(seed, stream, start, stop, width, np.float32),
    "normals f8": lambda seed, stream, start, stop, width: normals(seed, stream, start, stop, width, np.float64),
    "signs": lambda seed, stream, start, stop, width: signs(seed, stream, start, stop, width, np.float32),
    # below a bound that has a quarter of all numbers drawn again
    "integers": lambda seed, stream, start, stop, width: integers(seed, stream, start, stop, width, 2**62 + 1),
    "uniforms": uniforms,
}
MANY = 200_000
SIGMAS = 5.0  # a right generator fails one such check in 2 million; the seeds are fixed, so it never fails by chance


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    width=st.sampled_from([1, 3, 100, BLOCK - 1, BLOCK, BLOCK + 1]),
    cuts=st.lists(st.integers(0, 60), min_size=2, max_size=6),
    first=st.sampled_from([0, 7, BLOCK - 5, 10**12]),
)
def test_a_range_has_the_same_bits_however_it_is_cut(name, width, cuts, first):
    draw, cuts = KINDS[name], sorted(cuts)
    whole = draw(3, "x", first, first + 60, width)
    parts = [draw(3, "x", first + a, first + b, width) for a, b in pairwise(cuts)]
    assert whole.shape == (60, width)
    assert np.array_equal(np.concatenate(parts), whole[cuts[0] : cuts[-1]])


@pytest.mark.parametrize("name", KINDS)
def test_ranges_over_many_blocks_are_the_blocks_end_to_end(name):
    draw = KINDS[name]
    whole = draw(0, "x", 0, 5 * BLOCK + 3, 1)
    singles = [draw(0, "x", row, row + 1, 1)[0] for row in (0, BLOCK - 1, BLOCK, 5 * BLOCK + 2)]
    assert np.array_equal(singles, whole[[0, BLOCK - 1, BLOCK, 5 * BLOCK + 2]])
    assert not np.array_equal(whole[:BLOCK], whole[BLOCK : 2 * BLOCK])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("other", [(1, "x", 2), (2**70, "x", 2), (0, "y", 2), (0, "x", 3), (0, "x\x000", 2)])
def test_another_seed_stream_or_width_is_uncorrelated(name, other):
    draw, count = KINDS[name], MANY // 2
    here = draw(0, "x", 0, count, 2).ravel().astype(np.float64)
    seed, stream, width = other
    there = draw(seed, stream, 0, count, width).ravel()[: len(here)].astype(np.float64)
    assert abs(np.corrcoef(here, there)[0, 1]) < SIGMAS / np.sqrt(len(here))


def test_kinds_of_one_stream_are_uncorrelated():
    drawn = np.array([draw(0, "x", 0, MANY, 1)[:, 0] for draw in KINDS.values()], dtype=np.float64)
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    pair = [list(KINDS).index(name) for name in ("normals f4", "normals f8")]
    correlations[np.ix_(pair, pair)] = 0  # the two precisions of one matrix may share bits
    assert np.abs(correlations).max() < SIGMAS / np.sqrt(MANY)


@pytest.mark.parametrize("name", KINDS)
def test_neighbouring_rows_columns_and_blocks_are_uncorrelated(name):
    drawn = KINDS[name](5, "x", 0, MANY, 1)[:, 0].astype(np.float64)
    wide = KINDS[name](5, "x", 0, MANY // 2, 2).astype(np.float64)
    for lag in (1, 2, 64, BLOCK):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < SIGMAS / np.sqrt(MANY - lag)
    assert abs(np.corrcoef(wide.T)[0, 1]) < SIGMAS / np.sqrt(len(wide))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_have_the_moments_of_the_normal_distribution(dtype):
    drawn = normals(0, "x", 0, MANY, 1, dtype).astype(np.float64)
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs(np.mean(drawn**power) - mean) < SIGMAS * np.sqrt(variance / MANY)
    assert 4 < np.abs(drawn).max() < 6.5  # P(max < 4) = 3e-6, P(max > 6.5) = 2e-5


def test_uniforms_have_the_moments_of_the_uniform_distribution_and_stay_below_1():
    drawn = uniforms(0, "x", 0, MANY, 1)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 1 / 2) < SIGMAS * np.sqrt(1 / 12 / MANY)
    assert abs(np.mean(drawn**2) - 1 / 3) < SIGMAS * np.sqrt(4 / 45 / MANY)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.float64])
def test_signs_are_balanced_and_the_same_in_every_dtype(dtype):
    drawn = signs(0, "x", 0, MANY, 3, dtype)
    assert drawn.dtype == dtype
    assert set(np.unique(drawn)) == {-1, 1}
    assert np.array_equal(drawn, signs(0, "x", 0, MANY, 3, np.int16))
    assert np.abs(drawn.mean(axis=0, dtype=np.float64)).max() < SIGMAS / np.sqrt(MANY)


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_integers_fall_evenly_on_all_values(bound):
    counts = np.bincount(integers(0, "x", 0, MANY, 1, bound)[:, 0], minlength=bound)
    assert len(counts) == bound
    assert np.abs(counts - MANY / bound).max() <= SIGMAS * np.sqrt(MANY / bound)


def test_integers_are_unbiased_where_the_remainder_of_2_to_64_is_large():
    # Without drawing again, the first third of this range would be half again as likely as the rest.
    bound = 3 << 61
    drawn = integers(0, "x", 0, MANY, 1, bound)
    assert drawn.min() >= 0
    assert drawn.max() < bound
    assert abs(np.mean(drawn < 2**64 % bound) - 2 / 3) < SIGMAS * np.sqrt(2 / 9 / MANY)


def test_the_numbers_are_still_those_of_earlier_releases():
    # Saved models are projected with W drawn anew. If NumPy changes its normals, say so in CHANGELOG.md.
    assert normals(1, "x", 10, 11, 3, "f4").tolist() == [
        [-1.2150086164474487, -1.6964417695999146, -0.8522999286651611]
    ]
    assert normals(1, "x", 10, 11, 3, "f8").tolist() == [
        [-0.2520683453908415, -0.5622481670422972, -0.8515959680081865]
    ]
    assert signs(1, "x", 10, 11, 8, "i1").tolist() == [[1, -1, -1, -1, -1, 1, 1, -1]]
    assert integers(1, "x", 10, 11, 6, 100).tolist() == [[2, 68, 51, 50, 40, 33]]
    assert uniforms(1, "x", 10, 11, 2).tolist() == [[0.6315523157055385, 0.04931471655746811]]


def test_empty_ranges_are_empty():
    assert normals(0, "x", 5, 5, 3, np.float32).shape == (0, 3)


@pytest.mark.parametrize("seed", [0, 2**200, np.int32(4), np.uint64(2**64 - 1)])
def test_integers_of_any_size_are_seeds(seed):
    assert check_seed(seed) == int(seed)
    assert type(check_seed(seed)) is int
    assert np.array_equal(uniforms(seed, "x", 0, 2, 2), uniforms(int(seed), "x", 0, 2, 2))


@pytest.mark.parametrize("seed", [None, 1.0, "1", True, np.False_, np.random.default_rng(0)])
def test_a_seed_that_is_no_integer_is_rejected(seed):
    with pytest.raises(TypeError, match=r"seed = .* is of type .*, but a seed must be an integer of at least 0"):
        uniforms(seed, "x", 0, 1, 1)


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: uniforms(-1, "x", 0, 1, 1), ValueError, "seed = -1 is negative"),
        (lambda: uniforms(0, "x", -1, 1, 1), ValueError, "rows -1:1 of width 1 were requested, but 0 <= start <= stop"),
        (lambda: uniforms(0, "x", 2, 1, 1), ValueError, "rows 2:1 of width 1"),
        (lambda: uniforms(0, "x", 0, 1, 0), ValueError, "rows 0:1 of width 0 .* a width of at least 1"),
        (
            lambda: normals(0, "x", 0, 1, 1, np.float16),
            TypeError,
            "normals of dtype float16 .* only float32 and float64",
        ),
        (lambda: signs(0, "x", 0, 1, 1, np.uint8), TypeError, "signs of dtype uint8 .* -1 needs a signed dtype"),
        (lambda: integers(0, "x", 0, 1, 1, 0), ValueError, "integers below 0 were requested, but the bound must be in"),
        (lambda: integers(0, "x", 0, 1, 1, 2**63 + 1), ValueError, r"the bound must be in \[1, 2\^63\]"),
    ],
)
def test_impossible_draws_are_rejected_with_the_numbers(draw, error, message):
    with pytest.raises(error, match=message):
        draw()
