"""One BLAS thread while rows are folded, more while a matrix is solved, and the number restored; syrk in place."""

import threading
from types import FrameType
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from bigpca import blas
from bigpca.blas import (
    Crew,
    add_product,
    blas_threads,
    current_threads,
    each_piece,
    numerical_environment,
    one_blas_thread,
    solve_paused,
    symmetric_rank_update,
    threads_of_solve,
)
from tests.interrupts import Interrupt, lines_of


@pytest.fixture(autouse=True)
def _restored(two_blas_threads: None) -> Any:
    before = current_threads()
    yield
    assert current_threads() == before


def test_a_fold_has_one_thread_until_the_last_of_nested_folds_leaves() -> None:
    with blas_threads(2):
        pass
    with one_blas_thread():
        with one_blas_thread():
            assert set(current_threads()) <= {1}
        assert set(current_threads()) <= {1}


def test_the_number_is_restored_after_an_error() -> None:
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError
    with pytest.raises(KeyError), blas_threads(1):
        raise KeyError


def test_no_number_leaves_the_setting_even_inside_a_fold() -> None:
    with one_blas_thread(), blas_threads(None):
        assert set(current_threads()) <= {1}


def test_a_solve_inside_a_solve_keeps_its_number() -> None:
    with blas_threads(1), blas_threads(2):
        assert set(current_threads()) <= {1}


def test_folds_run_while_a_solve_pauses_and_it_continues_with_its_number() -> None:
    folded = threading.Event()

    def fold() -> None:
        with one_blas_thread():
            folded.set()

    with blas_threads(2):
        thread = threading.Thread(target=fold, daemon=True)
        with solve_paused(), blas_threads(1):
            assert set(current_threads()) <= {1}
        thread.start()
        assert not folded.wait(0.1)
        with solve_paused():
            assert folded.wait(600)
        thread.join(60)
        with one_blas_thread():  # of its own, such as a chunk function's
            assert set(current_threads()) <= {1}
        assert set(current_threads()) <= {2}


def test_a_solve_whose_pause_fails_is_over_and_waits_for_no_fold() -> None:
    leave = threading.Event()

    def fold() -> None:
        with one_blas_thread():
            leave.wait(600)

    thread = threading.Thread(target=fold, daemon=True)

    def fail() -> None:
        thread.start()
        raise KeyError

    with pytest.raises(KeyError), blas_threads(2), solve_paused():
        fail()
    leave.set()
    thread.join(60)


def test_a_solve_that_computes_lazy_folds_waits_for_them_and_keeps_its_number() -> None:
    @dask.delayed
    def fold(i: int) -> tuple[int, ...]:
        with one_blas_thread():
            return (i, *current_threads())

    def solve() -> None:
        with blas_threads(2):
            found.append(dask.compute(*map(fold, range(8)), scheduler="threads", num_workers=3))
            found.append(current_threads())

    found: list[Any] = []
    thread = threading.Thread(target=solve, daemon=True)
    thread.start()
    thread.join(60)
    assert found[0] == tuple((i, *(1 for _ in current_threads())) for i in range(8))
    assert set(found[1]) == {2}


def test_a_short_solve_uses_one_thread_and_gives_back_the_number_of_the_outer_one() -> None:
    with blas_threads(2, 1e6):
        assert set(current_threads()) == {1}
    with blas_threads(2):
        with blas_threads(2, 1e6):
            assert set(current_threads()) == {1}
        assert set(current_threads()) == {2}
        with blas_threads(2, 1e12):
            assert set(current_threads()) == {2}


def test_a_solve_waits_until_no_fold_runs() -> None:
    solved = threading.Event()

    def solve() -> None:
        with blas_threads(1):
            solved.set()

    thread = threading.Thread(target=solve, daemon=True)
    with one_blas_thread():
        thread.start()
        assert not solved.wait(0.1)
    assert solved.wait(600)
    thread.join(60)


def test_an_interrupt_at_any_line_leaves_nothing_to_wait_for_although_its_traceback_is_kept() -> None:
    def solve() -> None:
        with blas_threads(2):
            with threads_of_solve(), solve_paused(), one_blas_thread():
                pass
            found.append(set(current_threads()))

    def within(frame: FrameType) -> bool:
        return frame.f_code.co_filename == blas.__file__

    found: list[set[int]] = []
    lines = lines_of(solve, within)
    errors = [Interrupt(within, line).during(solve) for line in lines]
    assert len(lines) > 50
    assert None not in errors
    found.clear()
    for _ in range(2):
        thread = threading.Thread(target=solve, daemon=True)
        thread.start()
        thread.join(60)
        solve()
    assert found == [{2}] * 4


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_the_upper_triangle_is_the_product_and_the_rest_is_left(dtype: str, order: str) -> None:
    rows = np.random.default_rng(0).standard_normal((30, 14)).astype(dtype)
    rows = rows[::2, ::2] if order == "strided" else np.asarray(rows, order=order)  # type: ignore[call-overload]
    d = rows.shape[1]
    out = np.full((d, d), 7.0, dtype)
    symmetric_rank_update(rows, out)
    upper = np.triu_indices(d)
    exact = rows.astype("f8").T @ rows.astype("f8")
    np.testing.assert_allclose(out[upper], exact[upper], rtol=0, atol=30 * np.finfo(dtype).eps * np.abs(exact).max())
    assert (out[np.tril_indices(d, -1)] == 7).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("shape", [(30, 14, 6), (1, 14, 1), (30, 1, 6), (30, 14, 20)])
def test_a_product_is_added_in_place(shape: tuple[int, int, int], order: str, dtype: str) -> None:
    n, d, columns = shape
    rng = np.random.default_rng(0)

    def laid_out(*size: int) -> Any:
        whole = rng.standard_normal((2 * size[0], 2 * size[1])).astype(dtype)
        return whole[::2, ::2] if order == "strided" else np.asarray(whole[::2, ::2], order=order)  # type: ignore[call-overload]

    rows, factors = laid_out(n, d), laid_out(n, columns)
    out = np.array(rng.standard_normal((d, columns)), dtype, order="C" if order == "strided" else order)  # type: ignore[call-overload]
    before, place = out.astype("f8"), out.ctypes.data
    given = rows.copy(), factors.copy()
    add_product(rows, factors, out)
    exact = before + rows.astype("f8").T @ factors.astype("f8")
    np.testing.assert_allclose(out, exact, rtol=0, atol=30 * np.finfo(dtype).eps * np.abs(exact).max())
    assert out.ctypes.data == place
    assert np.array_equal(rows, given[0])
    assert np.array_equal(factors, given[1])


@pytest.mark.parametrize("wrong", ["rows", "factors", "out", "order"])
def test_a_product_of_mixed_types_or_into_every_other_row_is_rejected(wrong: str) -> None:
    arrays: dict[str, Any] = {"rows": np.ones((5, 4)), "factors": np.ones((5, 3)), "out": np.zeros((4, 3))}
    if wrong == "order":
        arrays["out"] = np.zeros((8, 3))[::2]
    else:
        arrays[wrong] = arrays[wrong].astype("f4")
    with pytest.raises(TypeError, match=r"rows are .*; one dtype and a contiguous out were expected"):
        add_product(**arrays)


def test_the_environment_names_what_bits_depend_on() -> None:
    assert set(numerical_environment()) == {"python", "numpy", "scipy", "blas", "simd"}
    assert all(numerical_environment().values())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_strips_of_a_product_are_the_product_and_leave_the_lower_triangle(count: int, dtype: str, order: Any) -> None:
    rng, d = np.random.default_rng(3), 5 * blas.STRIP_COLUMNS + 7
    rows = np.asarray(rng.standard_normal((50, d)), dtype, order=order)
    out, factors = np.full((d, d), 7.0, dtype), rng.standard_normal((50, 9)).astype(dtype)
    product, thin = np.zeros((d, d), dtype), np.zeros((d, 9), dtype, order=order)
    with blas.in_strips(count):
        assert len(blas.strips_of(d, blas.STRIP_COLUMNS)) == count
        symmetric_rank_update(rows, out, add=True)
        symmetric_rank_update(rows, product)
        add_product(rows, factors, thin)
        made = blas.by_rows(lambda some: some @ rows.T, np.tile(rows, (60, 1)))
    tolerance = {"atol": 400 * np.finfo(dtype).eps}
    np.testing.assert_allclose(out, np.where(np.tri(d, k=-1, dtype=bool), 0, rows.T @ rows) + 7, **tolerance)
    np.testing.assert_allclose(np.triu(product), np.triu(rows.T @ rows), **tolerance)
    np.testing.assert_allclose(thin, rows.T @ factors, **tolerance)
    np.testing.assert_allclose(made, np.tile(rows @ rows.T, (60, 1)), atol=5000 * np.finfo(dtype).eps)


def test_idle_threads_take_pieces_until_tasks_need_them() -> None:
    crew, seen, met = Crew(3), list[int](), threading.Barrier(2, timeout=600)

    def work(piece: int) -> None:
        if piece < 2:  # one thread alone would wait for ever
            met.wait()
        seen.append(piece)

    with crew.task(), crew.task():  # one of three threads is idle
        each_piece(work, range(20))
    assert sorted(seen) == list(range(20))
    threads = set[int]()
    with crew.task(), crew.task(), crew.task():
        each_piece(lambda _: threads.add(threading.get_ident()), range(20))
    assert threads == {threading.get_ident()}
    crew.close()


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_in_a_piece_is_raised_when_no_thread_works_any_more(bad: int) -> None:
    crew, met, running = Crew(2), threading.Barrier(2, timeout=600), list[int]()

    def work(piece: int) -> None:
        running.append(piece)
        if piece < 2:
            met.wait()
            if piece == bad:
                raise KeyError(piece)
        running.remove(piece)

    with crew.task(), pytest.raises(KeyError):
        each_piece(work, range(50))
    assert running == [bad]
    assert crew._busy == 0
    crew.close()


@pytest.mark.cluster
def test_a_worker_of_this_process_folds_while_a_solve_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold() -> set[int]:
        with one_blas_thread():
            return set(current_threads())

    monkeypatch.setattr(blas, "HOLD_BACK_SECONDS", 0.2)
    one = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with Client(**one) as client, blas_threads(2):
        assert client.submit(fold).result(600) == {1}
        assert set(current_threads()) == {2}
