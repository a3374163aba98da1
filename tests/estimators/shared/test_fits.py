"""A fit is executed as it was declared, and fails where it does more than its plan; a solver is a record and a row."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone

import bigpca as bp
from bigpca.engine.planning import THREAD_BYTES, Layout, PassCost, Resources, SolveCost, plan_of
from bigpca.engine.run import Run
from bigpca.errors import UndeclaredPassError
from bigpca.estimators.kernel.kernel_pca import FITS as KERNEL_FITS
from bigpca.estimators.kernel.maps import Expansion
from bigpca.estimators.kernel.spectrum import KernelFit, KernelSpectrum, collecting, take_rows
from bigpca.estimators.linear.choosing import FITS
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.estimators.linear.spectrum import PCAFit, PCAResult, Settings
from bigpca.estimators.loading import CLASSES
from bigpca.estimators.shared.files import References
from bigpca.kernels import RBF
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.fold import Declared, Folded, Read
from bigpca.passes.reading import blocks
from bigpca.passes.rows import Rows

D = 6
X = np.random.default_rng(0).standard_normal((200, D)) * np.arange(1, D + 1.0)
LAZY = da.from_array(X, chunks=(40, D))
ROOMY = Resources(2, 1 << 34, 0, "a test")
RBF_KERNEL = RBF(gamma=0.1)


READS_TWICE: dict[str, tuple[Any, int]] = {
    "krylov": (bp.PCA(2, solver="krylov"), 600),
    "dot": (bp.PCA(2, solver="dot"), 20),
    "ritz": (bp.ApproximatePCA(2, approximation="ritz"), 600),
    "landmarks": (bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=20), 600),
    "kernel krylov": (bp.KernelPCA(2, kernel="rbf", solver="krylov"), 600),
    "scored": (bp.ScoredPCA(2, n_features_to_select=5), 600),
    "scored, preprocessed": (bp.ScoredPCA(2, n_features_to_select=5, preprocess=bp.preprocessing.L2()), 600),
    "scored folds": (bp.ScoredPCA(2, n_features_to_select="cv", preprocess=bp.preprocessing.L2()), 600),
}


@pytest.mark.parametrize(
    ("name", "sparse"),
    [(name, sparse) for name in READS_TWICE for sparse in (False, True) if not (sparse and name == "kernel krylov")],
)  # that solver reads dense rows
def test_a_graph_that_yields_other_values_at_each_read_is_rejected(name: str, sparse: bool) -> None:
    model, n = READS_TWICE[name]
    form = csr_array if sparse else np.asarray

    def drawn(block: Any, block_info: Any = None) -> Any:
        return form(np.random.default_rng().random(block.shape))

    def steady(block: Any) -> Any:
        return form(np.random.default_rng(block.size).random(block.shape))

    zeros = da.zeros((n, 30), chunks=(n // 4, 30))
    meta = csr_array((0, 30)) if sparse else np.zeros((0, 30))
    y = np.arange(n) % 7.0 if name.startswith("scored") else None
    clone(model).fit(zeros.map_blocks(steady, dtype="f8", meta=meta), y)
    with pytest.raises(ValueError, match=r"yields different values at each read.* Fit the array that bp\.ingest"):
        clone(model).fit(zeros.map_blocks(drawn, dtype="f8", meta=meta), y)


def planned(**changes: Any) -> tuple[CovarianceFit, Run]:
    """A fit, and a run whose plan differs from it."""
    fit = CovarianceFit(Rows.of(LAZY), Settings(2))
    return fit, Run(declared=Run.declares([replace(fit.moments.cost, **changes)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "another"}, r"the pass 'moments' is not in the plan, which has \['another'\]"),
        ({"state_bytes": 8}, r"a state of the pass 'moments' holds \d+ bytes; the plan has 8"),
        ({"reads": 0.5}, "the pass 'moments' takes 1 reads; the plan has 0.5"),
        ({"dtype": np.dtype("f4")}, "multiplies in float64; the plan has float32"),
        ({"times": 0, "most_times": 0}, "the pass 'moments' ran 1 times; the plan has 0"),
    ],
)
def test_a_run_does_nothing_that_its_plan_does_not_say(changes: dict[str, Any], message: str) -> None:
    fit, run = planned(**changes)
    with pytest.raises(UndeclaredPassError, match=message):
        fit.run(run)


@pytest.mark.parametrize(
    ("make", "name", "flops"),
    [
        (lambda: bp.PCA(2, solver="covariance"), "moments", 200 * D * (D + 1.0)),
        (
            lambda: bp.NystromKernelPCA(2, kernel=RBF_KERNEL, n_landmarks=10, sampling="uniform"),
            "features", 200 * 10 * (RBF_KERNEL.flops_per_entry(D) + 3.0 * 10),
        ),
    ],
)  # fmt: skip
def test_float32_rows_are_multiplied_in_float64_up_to_a_number_of_operations(
    make: Callable[[], Any], name: str, flops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, y = LAZY.astype("f4"), np.arange(200) % 3
    for limit, dtype in ((flops, "f8"), (np.nextafter(flops, 0), "f4")):
        monkeypatch.setattr(blocks, "PRECISE_FLOPS", limit)
        model = make()
        (found,) = (one for one in model._fit(model._open(rows), y).declared if one.name == name)
        assert found.dtype == np.dtype(dtype)


def test_a_pass_runs_as_often_as_declared_and_reads_are_added_up() -> None:
    fit, run = planned(most_times=2)
    for _ in range(2):
        fit.run(run)
    assert (run.number, run.reads, run.evaluations) == (2, 2.0, 0)
    with pytest.raises(UndeclaredPassError, match="ran 3 times; the plan has 2"):
        fit.run(run)


def test_float64_is_within_a_plan_that_has_room_for_it() -> None:
    fit, run = planned(dtype=np.dtype("f4"), refinable=True)
    assert fit.run(run).n_samples_ == len(X)


def test_two_passes_of_one_name_are_no_plan() -> None:
    with pytest.raises(UndeclaredPassError, match="two passes named 'a'"):
        Run.declares([PassCost(name="a"), PassCost(name="a")])


@pytest.mark.parametrize(
    ("local", "groups", "peak"), [(True, 2, 161), (True, 1, 145), (False, 2, 115), (False, 1, 115)]
)
def test_a_plan_is_the_sum_of_its_passes_and_its_solve(local: bool, groups: int, peak: int) -> None:
    """Three passes: one at most three times, one collected, one whose finish is large."""
    cut = tuple(range(i, i + 1) for i in range(groups))
    layout = Layout(groups, 1, 8, 1, tuple((i, i + 1) for i in range(groups)), cut, cut)
    passes = (
        PassCost(name="a", reads=0.5, times=2, most_times=3, bytes_read=10, layout=layout, state_bytes=7,
                 peak_bytes=100, driver_bytes=40, flops=5.0, evaluations=11.0),
        PassCost(name="b", bytes_read=20, state_bytes=30, peak_bytes=50, collected=True),
        PassCost(name="c", times=0, finish_bytes=230, block_rows=9),
    )  # fmt: skip
    solve = SolveCost(1000.0, bytes=20, held_bytes=60)
    plan = plan_of(passes, solve, replace(ROOMY, local=local), solver="a", reason="test", most_evaluations=1e9)
    assert (plan.passes, plan.most_passes, plan.bytes_read, plan.tasks) == (2.0, 3.5, 40, 2 * (2 * groups + 1) + 1)
    assert (plan.flops, plan.evaluations, plan.state_bytes, plan.block_rows) == (1010.0, 22.0, 30, 9)
    assert (plan.peak_bytes, plan.most_evaluations) == (peak + THREAD_BYTES, 1e9)
    assert plan.process_bytes == 2 * (peak + THREAD_BYTES)


def test_riders_move_no_group_border_and_no_arithmetic() -> None:
    rows, small = Rows.of(da.from_array(np.zeros((60_000, 40)), chunks=(500, 40))), Moments(40)
    alone, with_rider = (
        Read.into(rows, "a", {f"{i}": one for i, one in enumerate(states)}, cut_bytes=small.state_bytes, work=1e9).cost
        for states in ([small], [small, Moments(40)])
    )
    assert with_rider.layout == alone.layout
    assert with_rider.dtype == alone.dtype
    assert with_rider.state_bytes == 2 * alone.state_bytes


@dataclass(frozen=True)
class ToyFit(PCAFit):
    """A solver that bigpca has never heard of: one read, and NumPy."""

    reads: ClassVar[tuple[str, ...]] = ("moments",)
    solver: ClassVar[str] = "toy"

    @property
    def account(self) -> str:
        return "one read, and NumPy"

    @cached_property
    def moments(self) -> Read[Folded[Moments]]:
        template = Moments(self.rows.n_columns)
        read = Read.into(self.rows, "toy", template, cut_bytes=template.state_bytes, work=1.0)
        return read.costing(bytes_read=0, flops=0.0)  # the cheapest of all

    def run(self, run: Run) -> PCAResult:
        found = self.moments(run)
        values, vectors = np.linalg.eigh(found.state.scatter + np.triu(found.state.scatter, 1).T)
        k, n = self.settings.wanted(self.rows.n_rows, self.rows.n_columns), found.state.count
        total = float(values.sum()) / (n - 1)
        return PCAResult(
            n, found.omitted, found.state.mean, None, values[::-1][:k] / (n - 1), vectors.T[::-1][:k], total
        )


def test_a_solver_is_a_record_and_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(FITS, "toy", ToyFit)
    exact = bp.PCA(3, solver="covariance").fit(X)
    for solver in ("toy", "auto"):
        toy = bp.PCA(3, solver=solver)
        assert toy.plan(LAZY).solver == "toy"
        toy.fit(LAZY, checkpoint=tmp_path / solver)
        assert (toy.solver_, toy.plan_.passes) == ("toy", 1.0)
        np.testing.assert_allclose(toy.explained_variance_, exact.explained_variance_, rtol=1e-12)
        np.testing.assert_allclose(np.abs(toy.components_), np.abs(exact.components_), atol=1e-9)
    toy.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").solver_ == "toy"
    monkeypatch.delitem(FITS, "toy")
    with pytest.raises(
        ValueError, match=r"solver = 'toy' is unknown\. Use one of 'auto', 'covariance', 'dot', 'krylov'"
    ):
        bp.PCA(3, solver="toy").fit(X)


def test_numbers_of_other_shapes_than_their_fields_say_are_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Turned(ToyFit):
        def run(self, run: Run) -> PCAResult:
            found = super().run(run)
            return replace(found, components_=found.components_.T)

    monkeypatch.setitem(FITS, "toy", Turned)
    with pytest.raises(ValueError, match=r"PCAResult\.components_ of shape \(.*\); \(.*\) was expected, as .* has it"):
        bp.PCA(3, solver="toy").fit(LAZY)


@dataclass(frozen=True)
class ToyKernelFit(KernelFit):
    """A solver of kernel PCA that bigpca has never heard of: the rows at once, and NumPy."""

    solver: ClassVar[str] = "toy"

    @property
    def account(self) -> str:
        return "the rows at once, and NumPy"

    def passes(self) -> tuple[Declared, ...]:
        return (collecting(self.rows),)

    @property
    def price(self) -> float:
        return 0.0

    def spectrum(self, run: Run) -> KernelSpectrum:
        rows = collecting(self.rows).to(take_rows)(run, shift=np.zeros(self.rows.n_columns))
        n, kernel = len(rows), self.settings.kernel
        K = kernel(rows)
        H = np.eye(n) - 1 / n
        values, V = np.linalg.eigh(H @ K @ H)
        k, means = int(self.settings.n_components), K.mean(axis=1)  # type: ignore[arg-type]
        A = V[:, ::-1][:, :k] / np.sqrt(values[::-1][:k])
        expansion = Expansion(
            kernel, np.zeros(self.rows.n_columns), References(rows), A, means @ A, np.full(n, 1 / n),
            float(means.mean()), means,
        )  # fmt: skip
        return KernelSpectrum(n, 0, values[::-1][:k], float(values.sum()), expansion, n * n)


def test_a_solver_of_another_family_is_a_record_and_a_row_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setitem(KERNEL_FITS, "toy", ToyKernelFit)
    exact = bp.KernelPCA(3, kernel="rbf", solver="dense").fit(X)
    for solver in ("toy", "auto"):
        toy = bp.KernelPCA(3, kernel="rbf", solver=solver).fit(LAZY, checkpoint=tmp_path / solver)
        assert (toy.solver_, toy.plan_.passes) == ("toy", 1.0)
        np.testing.assert_allclose(toy.eigenvalues_, exact.eigenvalues_, rtol=1e-10)
        np.testing.assert_allclose(np.abs(toy.transform(X)), np.abs(exact.transform(X)), atol=1e-8)
    toy.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").solver_ == "toy"


def test_an_estimator_from_sums_as_it_is_described_adds_rows_merges_and_is_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    (tmp_path / "described.py").write_text(dedent(text.partition("  ```python\n")[2].partition("  ```\n")[0]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(CLASSES, "ZCA", "described")
    ZCA = importlib.import_module("described").ZCA
    w = np.arange(1.0, 201.0) % 5 + 1
    model = ZCA().fit(LAZY, sample_weight=w)
    assert (model.plan_.passes, model.provenance_.reads) == (1.0, 1.0)
    values, V = np.linalg.eigh(np.cov(X.T, fweights=w.astype(int)))
    expected = (X - np.average(X, axis=0, weights=w)) @ (V / np.sqrt(values)) @ V.T
    grown = ZCA().fit(X[:50], sample_weight=w[:50]).partial_fit(X[50:], sample_weight=w[50:])
    both = bp.merge(ZCA().fit(X[:50], sample_weight=w[:50]), ZCA().fit(X[50:], sample_weight=w[50:]))
    with pytest.raises(ValueError, match="floor was changed after the fit"):  # what nothing declares may act on sums
        ZCA().fit(X[:50]).set_params(floor=0.1).partial_fit(X[50:])
    model.save(tmp_path / "m.zarr")
    for one in (model, grown, both, bp.load(tmp_path / "m.zarr"), clone(model).fit(X, sample_weight=w)):
        np.testing.assert_allclose(one.transform(X), expected, rtol=1e-9, atol=1e-9)
        assert one.n_samples_ == 200
