"""Settings of runs: ``bp.config`` in blocks and for the process, the environment, and what pickles take along."""

import asyncio
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import FrameType
from typing import Any

import numpy as np
import pytest
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import bigpca as bp
from bigpca import settings
from bigpca.engine.driver import WithCounts, solving_with
from bigpca.estimators import loading
from bigpca.settings import setting
from tests.interrupts import Interrupt, lines_of

X = np.random.default_rng(0).standard_normal((40, 5))
CLASSES = {name: getattr(bp, name) for name in loading.CLASSES}
SETTINGS: dict[str, Any] = {
    "memory_limit": "3 GiB", "solve_threads": 3, "workers_timeout": 5.0, "keep_state_bytes": 10.0,
    "max_kernel_evaluations": 1e9, "arithmetic": "numpy",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_setting_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGPCA_SOLVE_THREADS")


def in_force() -> dict[str, Any]:
    return {name: setting(None, name) for name in SETTINGS}


def test_constructors_have_the_parameters_of_the_model_and_few_of_them() -> None:
    counts = {name: len(kind._get_param_names()) for name, kind in CLASSES.items()}
    assert counts["PCA"] <= 11
    assert max(counts.values()) <= 19, counts
    for name, kind in CLASSES.items():
        assert SETTINGS.keys() & kind._get_param_names() == {"memory_limit"}, name
        assert "missing_chunks" not in kind._get_param_names(), name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *((name, r"with bigpca\.config\(.*\.keep\(\)") for name in SETTINGS if name != "memory_limit"),
    ],
)
@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_a_setting_that_is_given_to_a_constructor_is_said_to_belong_elsewhere(kind: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"has no parameter '{name}'.*{hint}"):
        kind(**{name: 1})


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_a_memory_limit_that_is_given_wins_over_all_settings(kind: Any) -> None:
    plain, given = kind(), kind(memory_limit="2 GiB")
    before = plain.get_params()
    with bp.config(memory_limit="3 GiB"):
        assert (setting(plain, "memory_limit"), setting(given, "memory_limit")) == ("3 GiB", "2 GiB")
        assert plain.get_params() == clone(plain).get_params() == before


def test_blocks_come_before_the_process_and_this_before_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_force() == settings.DEFAULTS
    for name, text in (("MEMORY_LIMIT", "9 GiB"), ("SOLVE_THREADS", "9"), ("MAX_KERNEL_EVALUATIONS", "1e9")):
        monkeypatch.setenv(f"BIGPCA_{name}", text)
    environment = settings.DEFAULTS | {"memory_limit": "9 GiB", "solve_threads": 9, "max_kernel_evaluations": 1e9}
    assert in_force() == environment
    try:
        bp.config(memory_limit="5 GiB", workers_timeout=3).keep()
        kept = environment | {"memory_limit": "5 GiB", "workers_timeout": 3.0}
        assert in_force() == kept
        with bp.config(**SETTINGS):
            assert in_force() == SETTINGS
            with bp.config(memory_limit="1 GiB"), bp.config():
                assert in_force() == SETTINGS | {"memory_limit": "1 GiB"}
            assert in_force() == SETTINGS
        assert in_force() == kept
    finally:
        bp.config().keep()
    assert in_force() == environment
    monkeypatch.setenv("BIGPCA_SOLVE_THREADS", "many")
    with pytest.raises(TypeError, match="solve_threads = 'many' is a str; an integer"):
        bp.PCA(2).fit(X)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("solve_threads", 0, ValueError, r"solve_threads = 0 is outside \[1, inf\); a number of threads was"),
        ("solve_threads", True, TypeError, "solve_threads = True is a bool; an integer"),
        ("workers_timeout", -1, ValueError, r"workers_timeout = -1 is outside \[0, inf\]; a number of seconds"),
        ("keep_state_bytes", "x", TypeError, "keep_state_bytes = 'x' is a str; .* a number of bytes"),
        ("max_kernel_evaluations", np.nan, ValueError, "max_kernel_evaluations = nan is outside"),
        ("max_kernel_evaluations", True, TypeError, "max_kernel_evaluations = True is a bool"),
        ("memory", 1, TypeError, "unexpected keyword argument 'memory'"),
    ],
)
def test_what_is_no_setting_is_rejected_at_once(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bp.config(**{name: value})


class Noted(bp.PCA):
    """Notes the settings of its fit, where a search fits it."""

    def fit(self, X: Any, y: Any = None, **options: Any) -> Any:
        super().fit(X, y, **options)
        limit, threads = self.plan_.resources.limit_bytes, self.provenance_.solve_threads
        with settings.brought_by(clone(self)):
            self.noted_ = {**in_force(), "memory_limit": f"{limit >> 30} GiB", "solve_threads": threads}
        return self

    def score(self, X: Any, y: Any = None) -> float:
        return float(self.noted_ == SETTINGS)


@pytest.mark.parametrize("backend", ["threading", "loky"])
@pytest.mark.parametrize("how", ["block", "process"])
def test_a_search_has_the_settings_in_its_threads_and_processes(backend: str, how: str) -> None:
    """More folds than are dispatched at once: joblib clones and pickles the others in threads of its own."""
    given = bp.config(**SETTINGS)
    search = GridSearchCV(make_pipeline(Noted(1)), {"noted__n_components": [1, 2]}, cv=4, n_jobs=2, refit=False)
    try:
        with parallel_backend(backend), given if how == "block" else nullcontext(given.keep()):
            search.fit(X)
    finally:
        bp.config().keep()
    assert search.cv_results_["mean_test_score"].tolist() == [1.0, 1.0]
    with given:
        copied = pickle.loads(pickle.dumps(bp.PCA(1)))
    assert setting(copied, "solve_threads") == setting(clone(copied), "solve_threads") == 3
    with bp.config(solve_threads=1):
        assert setting(copied, "solve_threads") == 1


QUESTIONS: dict[str, Callable[..., Any]] = {
    "cka": lambda _, **limit: bp.quality.cka(X, X, **limit),
    "residuals": lambda model, **limit: bp.quality.reconstruction_error(model, X, **limit),
    "standard errors": lambda model, **limit: bp.quality.standard_errors(model, X, **limit),
}


@pytest.mark.parametrize("name", ["residuals", "standard errors"])
def test_questions_about_a_model_use_its_limit(name: str) -> None:
    model = bp.PCA(2).fit(X).set_params(memory_limit="1 KiB")
    with pytest.raises(bp.errors.MemoryBudgetError, match="memory_limit"):
        QUESTIONS[name](model)


@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_questions_use_the_block_and_a_limit_that_is_given_wins(ask: Any) -> None:
    model = bp.PCA(2).fit(X)
    with pytest.raises(ValueError, match="memory_limit = 0 is not positive"):
        ask(model, memory_limit=0)
    with bp.config(memory_limit="1 KiB"):
        with pytest.raises(bp.errors.MemoryBudgetError, match="memory_limit"):
            ask(model)
        ask(model, memory_limit="64 GiB")


def test_fits_use_the_block_and_so_do_additions_and_solves() -> None:
    with bp.config(memory_limit="3 GiB", keep_state_bytes=10):
        model = bp.PCA(2)
        assert model.plan(X).resources.limit_bytes == 3 << 30
        assert model.fit(X)._result.state is None
        with bp.config(keep_state_bytes=1000):
            assert bp.PCA(2).fit(X)._result.state is not None
        with pytest.raises(ValueError, match="keep_state_bytes = 10 B"):
            model.partial_fit(X)
        with pytest.raises(bp.errors.MemoryBudgetError, match="memory_limit"), bp.config(memory_limit="1 KiB"):
            model.fit(X)
    assert bp.PCA(2).fit(X)._result.state is not None
    with bp.config(solve_threads=1):
        waiting = bp.PCA(2).partial_fit(X[:20]).partial_fit(X[20:])
        assert waiting._found.threads == waiting.provenance_.solve_threads == 1
        assert bp.merge(waiting, waiting).provenance_.solve_threads == 1


@pytest.mark.parametrize(
    "model",
    [
        bp.KernelPCA(1, kernel="rbf"), bp.NystromKernelPCA(1, kernel="rbf", n_landmarks=9),
        bp.ApproximateKernelPCA(1, kernel="rbf", sketch=bp.sketches.Gaussian(3)),
        bp.KernelRoweisDiscriminantAnalysis(1, n_landmarks=9),
    ],
    ids=str,
)  # fmt: skip
def test_every_kernel_model_keeps_to_the_budget_of_evaluations(model: Any) -> None:
    y = np.arange(len(X)) % 2
    with pytest.raises(bp.errors.EvaluationBudgetError, match="over max_kernel"), bp.config(max_kernel_evaluations=9):
        model.fit(X, y)
    model.fit(X, y)


def test_a_block_ends_with_an_error_and_holds_in_its_thread_or_task_and_in_those_without_one() -> None:
    def limit() -> Any:
        return setting(bp.PCA(), "memory_limit")

    def nested() -> Any:
        with bp.config(solve_threads=1):
            return limit(), setting(None, "solve_threads")

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
        assert pool.submit(limit).result(60) == "1 GiB"
        assert pool.submit(nested).result(60) == ("1 GiB", 1)
        assert setting(None, "solve_threads") is None
    assert asyncio.run(both()) == ["1 GiB", "2 GiB"]
    assert in_force() == settings.DEFAULTS


def test_an_interrupt_at_any_line_ends_the_block_and_a_fit() -> None:
    """Although tracebacks are kept, as IPython does; and blocks that are ended late end no other."""

    def work() -> Any:
        with bp.config(memory_limit="1 GiB"), solving_with(1):
            return setting(bp.PCA(), "memory_limit"), WithCounts(abs).solve_threads

    def within(frame: FrameType) -> bool:
        return frame.f_code in {inspect.unwrap(one).__code__ for one in (settings.block, solving_with, settings._end)}

    lines = lines_of(work, within)
    assert len(lines) > 10
    errors = []
    with bp.config(memory_limit="2 GiB"):
        for line in lines:
            errors.append(Interrupt(within, line).during(work))
            assert setting(bp.PCA(), "memory_limit") == "2 GiB", line
            assert WithCounts(abs).solve_threads is None, line
            assert work() == ("1 GiB", 1)
        errors.clear()
        assert setting(bp.PCA(), "memory_limit") == "2 GiB"
    assert setting(bp.PCA(), "memory_limit") is None
