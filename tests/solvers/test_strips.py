"""Strips of long rows: every entry once, sums as NumPy's, and the same bits on any number of threads."""

import threading

import numpy as np
import pytest

from bigpca.blas import blas_threads, current_threads, threads_of_solve
from bigpca.solvers.strips import PARTS, SHARED, STRIP_WIDTH, each_strip, sum_strips

MANY = round(SHARED)  # multiplications for an entry: any number of those is worth threads


@pytest.mark.parametrize("N", [1, 7, STRIP_WIDTH, STRIP_WIDTH + 1, PARTS * STRIP_WIDTH, 3 * PARTS * STRIP_WIDTH + 5])
def test_sums_are_those_of_whole_rows_and_do_not_depend_on_threads(N: int) -> None:
    rows = np.random.default_rng(0).standard_normal((3, N))
    found = []
    for threads, each in zip((None, 1, 2, 5, 5), (MANY, MANY, MANY, MANY, 9), strict=True):
        seen = np.zeros(N, int)
        with blas_threads(threads):
            each_strip(lambda j, seen=seen: seen.__setitem__(j, seen[j] + 1), N, each)
            found.append(sum_strips(lambda j: rows[:, j] @ rows[:, j].T, N, each))
        assert (seen == 1).all()
    np.testing.assert_allclose(found[0], rows @ rows.T, rtol=1e-12, atol=1e-12 * N)
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("each", [MANY, 9])
def test_threads_of_a_solve_take_the_place_of_those_of_blas_where_there_is_enough_to_do(each: int) -> None:
    used = set()

    def work(strip: slice) -> None:
        used.add((threading.get_ident(), *current_threads()))

    with blas_threads(2):
        before = current_threads()
        with threads_of_solve() as threads:
            assert threads == 2
        each_strip(work, 40 * STRIP_WIDTH, each)
        assert current_threads() == before
    assert len(used) <= 2
    assert (each == 9) == ({thread for thread, *_ in used} == {threading.get_ident()})
    assert all(set(counts) == {1} for _, *counts in used)


def test_an_error_in_a_strip_is_raised() -> None:
    with blas_threads(2), pytest.raises(ZeroDivisionError):
        each_strip(lambda j: 1 // 0, 4 * STRIP_WIDTH, MANY)
