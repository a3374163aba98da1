"""``bp.config`` gives values to parameters that have their defaults, in its block and its thread alone."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca import settings
from bigpca.estimators.loading import CLASSES
from bigpca.passes.engine.driver import solving_with, with_solve_threads
from bigpca.settings import setting
from tests.interrupts import Interrupt, lines_of

X = np.random.default_rng(0).standard_normal((40, 5))
GIVEN: dict[str, tuple[Any, Any]] = {  # of the block, and of a parameter
    "memory_limit": ("3 GiB", "2 GiB"),
    "solve_threads": (3, 2),
    "workers_timeout": (5.0, 7.0),
    "keep_state_bytes": (10, 1000),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_a_parameter_that_is_given_wins_over_the_block(kind: Any, name: str) -> None:
    if name not in kind._get_param_names():
        return
    block, own = GIVEN[name]
    plain, given = kind(), kind(**{name: own})
    before = plain.get_params()
    with bp.config(**{name: block}):
        assert (setting(plain, name), setting(given, name)) == (block, own)
        assert plain.get_params() == clone(plain).get_params() == before
        with bp.config(memory_limit="1 GiB"), bp.config():
            assert setting(plain, name) == ("1 GiB" if name == "memory_limit" else block)
    assert setting(plain, name) == before[name]


def test_fits_use_the_block_and_so_do_additions_and_solves() -> None:
    with bp.config(memory_limit="3 GiB", keep_state_bytes=10):
        model = bp.PCA(2)
        assert model.plan(X).resources.limit_bytes == 3 << 30
        assert model.fit(X)._state is None
        assert bp.PCA(2, keep_state_bytes=1000).fit(X)._state is not None
        with pytest.raises(ValueError, match="keep_state_bytes = 10 B"):
            model.partial_fit(X)
        with pytest.raises(bp.errors.MemoryBudgetError, match="memory_limit"), bp.config(memory_limit="1 KiB"):
            model.fit(X)
    assert bp.PCA(2).fit(X)._state is not None
    with bp.config(solve_threads=0), pytest.raises(ValueError, match="solve_threads = 0 is below 1"):
        bp.PCA(2).fit(X)
    with bp.config(solve_threads=1):
        waiting = bp.PCA(2).partial_fit(X[:20]).partial_fit(X[20:])
        assert waiting._unsolved.threads == 1


def test_a_block_ends_with_an_error_and_holds_in_one_thread_or_task() -> None:
    def limit() -> Any:
        return setting(bp.PCA(), "memory_limit")

    async def task(own: str) -> Any:
        with bp.config(memory_limit=own):
            await asyncio.sleep(0.01)
            return limit()

    async def both() -> Any:
        return await asyncio.gather(task("1 GiB"), task("2 GiB"))

    with pytest.raises(ZeroDivisionError), bp.config(memory_limit="1 GiB"):
        raise ZeroDivisionError
    assert limit() is None
    with bp.config(memory_limit="1 GiB"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(limit).result(60) is None
    assert asyncio.run(both()) == ["1 GiB", "2 GiB"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'memory'"):
        bp.config(memory="1 GiB")


def test_an_interrupt_at_any_line_ends_the_block_and_a_fit() -> None:
    """Although tracebacks are kept, as IPython does; and blocks that are ended late end no other."""

    def work() -> Any:
        with bp.config(memory_limit="1 GiB"), solving_with(1):
            return setting(bp.PCA(), "memory_limit"), with_solve_threads(abs).solve_threads

    def within(frame: FrameType) -> bool:
        return frame.f_code in {inspect.unwrap(one).__code__ for one in (bp.config, solving_with, settings._end)}

    lines = lines_of(work, within)
    assert len(lines) > 10
    errors = []
    with bp.config(memory_limit="2 GiB"):
        for line in lines:
            errors.append(Interrupt(within, line).during(work))
            assert setting(bp.PCA(), "memory_limit") == "2 GiB", line
            assert with_solve_threads(abs).solve_threads is None, line
            assert work() == ("1 GiB", 1)
        errors.clear()
        assert setting(bp.PCA(), "memory_limit") == "2 GiB"
    assert setting(bp.PCA(), "memory_limit") is None
