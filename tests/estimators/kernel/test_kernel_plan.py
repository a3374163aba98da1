"""A plan of kernel PCA counts kernel evaluations, reads and memory before anything is read, and
rejects with a way out.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import bigpca as bp
from bigpca import KernelPCA, kernels
from bigpca.engine.planning import SAFE_SHARE
from bigpca.errors import EvaluationBudgetError, MemoryBudgetError
from bigpca.estimators.kernel.maps import regression, regression_bytes
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads
from tests.peaks import traced_peak

N, D = 20_000, 50


def test_more_evaluations_than_the_budget_are_rejected_unread_with_the_way_out() -> None:
    model = KernelPCA(5, kernel="rbf")
    with bp.config(max_kernel_evaluations=1e8):
        plan = model.plan(unreadable(N, D, 1000, np.float32))
    assert plan.solver == "krylov"
    assert plan.evaluations == pytest.approx(3 * N**2 / 2, rel=0.1)
    assert not plan.fits
    message = (
        r"krylov needs about 6\.5e\+08 kernel evaluations, over max_kernel_evaluations = 1e\+08\. Use NystromKernelPCA"
    )
    with pytest.raises(EvaluationBudgetError, match=message), bp.config(max_kernel_evaluations=1e8):
        model.fit(unreadable(N, D, 1000, np.float32))
    assert model.plan(unreadable(N, D, 1000, np.float32)).fits


def test_the_default_budget_rejects_a_million_rows_and_allows_two_hundred_thousand() -> None:
    with pytest.raises(EvaluationBudgetError, match="Use NystromKernelPCA"):
        KernelPCA(5, kernel="rbf", memory_limit="64 GiB").fit(unreadable(1_000_000, D, 10_000, np.float32))
    assert KernelPCA(5, kernel="rbf", memory_limit="64 GiB").plan(unreadable(200_000, D, 10_000, np.float32)).fits


def test_the_solver_is_chosen_by_rows_components_and_kernel() -> None:
    for n, options, solver in (
        (2500, {}, "dense"),
        (2501, {}, "krylov"),
        (3000, {"n_components": None}, "dense"),
        (3000, {"n_components": 0.5}, "krylov"),
        (3000, {"kernel": "sigmoid"}, "dense"),
        (5000, {"kernel": "sigmoid"}, "krylov"),
        (5000, {"kernel": "sigmoid", "n_components": 0.5}, "dense"),
        (5000, {"kernel": "linear"}, "features"),
        (5000, {"kernel": kernels.Hellinger() + kernels.Linear()}, "features"),
        (500, {"kernel": "linear", "fit_inverse_transform": True}, "dense"),
        (500, {"kernel": "linear", "n_components": 60}, "dense"),
    ):
        given: dict[str, Any] = {"n_components": 5, "kernel": "rbf", "memory_limit": "64 GiB"} | options
        assert KernelPCA(**given).plan(unreadable(n, D, 1000)).solver == solver, (n, options)


def test_a_regression_on_too_many_rows_is_rejected_unread() -> None:
    with pytest.raises(
        MemoryBudgetError, match=r"regresses 20000 rows .* 20000 x 20000 numbers, 3\.0 GiB; the limit is 10000"
    ):
        KernelPCA(5, kernel="rbf", fit_inverse_transform=True).fit(unreadable(N, D, 1000))


REGRESSED: dict[str, tuple[Any, int]] = {  # with the number of its reference rows
    "dense": (partial(KernelPCA, 3, kernel="rbf", solver="dense"), 1000),
    "krylov": (partial(KernelPCA, 3, kernel="rbf", solver="krylov"), 1000),
    "sketch": (partial(bp.ApproximateKernelPCA, 3, kernel="rbf"), 1000),
    "landmarks": (partial(bp.NystromKernelPCA, 3, kernel="rbf", n_landmarks=300), 300),
}


@pytest.mark.parametrize("name", REGRESSED)
def test_a_regression_is_part_of_the_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, p = REGRESSED[name]
    n, d = 1000, 40
    X = stored(tmp_path, data_with_spectrum(n, power_law(d), mean=1.0)[0], (500, d))
    without, model = make(), make(fit_inverse_transform=True)
    alone, plan = without.plan(X), model.plan(X)
    assert plan.evaluations - alone.evaluations == 2 * p**2
    assert plan.flops - alone.flops > p**3 / 3
    assert plan.passes - alone.passes == (p == n)  # references in a store are read again
    reads = Reads().watch(monkeypatch)
    model.fit(X)
    ran = float(reads.per_chunk((n, d), (500, d)).mean())
    assert model.kernel_evaluations_ <= plan.evaluations
    if name != "krylov":  # whose number of sweeps depends on the data
        assert plan.passes == pytest.approx(ran, abs=0.4)  # landmarks are drawn in a few more
    if name == "dense":
        expansion, expected = model._found.expansion, regression_bytes(kernels.RBF(), p, d, 3, 8)
        peak = traced_peak(lambda: regression(expansion, 1.0, 1))
        assert 8 * p**2 < peak < expected < 5 * peak


def test_a_regression_that_does_not_fit_is_rejected_unread() -> None:
    X = unreadable(8000, 10, 500)
    room = 300 * 2**20  # the fit asks for 70 MiB, and 8 n^2 bytes are 488 MiB
    limit = int((psutil.Process().memory_info().rss + room) / SAFE_SHARE)
    assert KernelPCA(3, kernel="rbf", solver="krylov", memory_limit=limit).plan(X).fits
    with pytest.raises(MemoryBudgetError, match=r"krylov needs .* memory_limit = "):
        KernelPCA(3, kernel="rbf", solver="krylov", memory_limit=limit, fit_inverse_transform=True).fit(X)
    with pytest.raises(EvaluationBudgetError), bp.config(max_kernel_evaluations=1.5e8):
        KernelPCA(3, kernel="rbf", solver="krylov", fit_inverse_transform=True).fit(X)


def test_a_printed_plan_says_how_many_evaluations_a_sweep_makes() -> None:
    text = str(KernelPCA(5, kernel="rbf").plan(unreadable(N, D, 1000, np.float32)))
    assert "kernel       6.46e+08 evaluations" in text
    assert "a sweep makes 2.09e+08 kernel evaluations and reads X 8.8 times; 3 are typical" in text


def test_training_rows_that_the_model_keeps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    X, model = np.random.default_rng(0).random((3000, 1000)), KernelPCA(5, kernel="rbf", solver="krylov")
    counted = model.plan(X).process_bytes
    monkeypatch.setattr("bigpca.estimators.kernel.spectrum._held_bytes", lambda *_: 0)
    assert counted - model.plan(X).process_bytes == pytest.approx(X.nbytes, rel=1e-6)
