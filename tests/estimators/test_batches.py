"""Rows that come in batches: the bits of rows in memory, resumed in order, and every way in which batches are wrong."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import dask
import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from pandas import DataFrame
from pyarrow.dataset import dataset

import bigpca as bp
from bigpca.data import batches, checks
from bigpca.data.stores import verify
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event, GroupEvent, SkipEvent
from bigpca.passes import project
from tests.estimators.doors import RIGHT
from tests.estimators.test_every_estimator import CASES, READING, bits
from tests.forks import ended

Array = NDArray[Any]
RNG = np.random.default_rng(0)
X = (8 + RNG.standard_normal((240, 6)) * 0.6 ** np.arange(6) + RNG.standard_normal((3, 6))[np.arange(240) % 3]).astype(
    "f4"
)
IN_ANY_ORDER = {
    "PCA dot", "KernelPCA dense", "KernelPCA krylov", "KernelPCA features", "ApproximateKernelPCA",
    "KernelSupervisedPCA dual",
}  # fmt: skip
ONE_READ = {
    "PCA": lambda: bp.PCA(2),
    "ApproximatePCA": lambda: bp.ApproximatePCA(2, bp.sketches.Gaussian(5)),
    "NystromKernelPCA": lambda: bp.NystromKernelPCA(2, gamma=0.1, sampling=X[:9]),
    "FisherDiscriminantAnalysis": lambda: bp.FisherDiscriminantAnalysis(2),
    "SupervisedPCA": lambda: bp.SupervisedPCA(2),
}
CODES = np.arange(240) % 3
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: chunks of 20 rows of float32, 12 groups."""
    monkeypatch.setattr(checks, "READABLE_BYTES", 480)
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "GROUP_BYTES", 480)
    monkeypatch.setattr(layout, "MIN_GROUPS", 12)
    monkeypatch.setattr(batches, "OPEN_BYTES", 24 * 300)


def batched(rows: Array, size: int) -> list[Array]:
    return [rows[i : i + size] for i in range(0, rows.shape[0], size)]


def fitted(model: Any, rows: Any, **options: Any) -> Any:
    return model.fit(rows, CODES, **options) if "labels" in model._traits.accepts else model.fit(rows, **options)


@pytest.mark.parametrize("name", READING)
def test_batches_give_the_bits_of_rows_in_memory_or_are_rejected_before_a_read(name: str) -> None:
    case = CASES[name]
    y, beside = case.y, () if "labels" not in case.make()._traits.accepts else (case.y,)
    alone = y is None or bool(beside)
    pairs = batched(X, 7) if alone else list(zip(batched(X, 7), batched(y, 7), strict=True))
    pairs.insert(2, X[:0] if alone else (X[:0], y[:0]))
    if name in IN_ANY_ORDER:
        with pytest.raises((ValueError, TypeError), match="in any order, but batches"):
            case.make().fit(bp.from_batches(pairs), *beside)
        return
    expected = case.make().fit(X) if y is None else case.make().fit(X, y)
    found = case.make().fit(bp.from_batches(pairs), *beside)
    if name in (
        "CCA",
        "PLSSVD",
        "PLSRegression",
        "PLSRegression of folds",
        "Ridge",
    ):  # sides in memory are cut where both have chunks, batches where they end
        np.testing.assert_allclose(found.transform(X), expected.transform(X), rtol=1e-9, atol=1e-9)
        return
    assert bits(found) == bits(expected)


@pytest.mark.parametrize("name", ONE_READ)
@pytest.mark.parametrize("threads", [1, 3])
def test_no_bit_depends_on_where_batches_end_or_on_threads(name: str, threads: int) -> None:
    expected = bits(fitted(ONE_READ[name](), X))
    with dask.config.set(scheduler="threads", num_workers=threads):
        for size in (1, 17, 240):
            rows = bp.from_batches(iter(batched(X, size)), shape=X.shape)
            assert bits(fitted(ONE_READ[name](), rows)) == expected


LABELLED = {
    **{name: ONE_READ[name] for name in ("FisherDiscriminantAnalysis", "SupervisedPCA")},
    "RoweisDiscriminantAnalysis": lambda: bp.RoweisDiscriminantAnalysis(2),
    "KernelSupervisedPCA": lambda: bp.KernelSupervisedPCA(2, gamma=0.1, sampling=X[:9]),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels_come_with_the_rows_in_one_read(name: str, tmp_path: Path) -> None:
    make = LABELLED[name]
    expected, names = make().fit(X, CODES), np.array(["ape", "bee", "cod"])
    for size in (7, 240):
        model = make().fit(bp.from_batches(_pairs(CODES, size), X.shape, classes=[2, 0, 1]))
        assert bits(model) == bits(expected)
    counted = make().fit(bp.from_batches(_pairs(names[CODES], 50), classes=[*names, "dog"]))
    np.testing.assert_allclose(counted.transform(X), expected.transform(X), atol=1e-5 * np.abs(X).max())
    assert counted.classes_.tolist() == [*names, "dog"]
    weights, known = np.arange(240.0) % 3 + (np.arange(240) > 5), CODES.astype(object)
    known[[3, 50]] = None  # row 3 has the weight 0
    rows = np.where(np.isin(np.arange(240), [3, 50])[:, None], [[np.nan]], X)  # which do not count
    dropping = make().set_params(missing_labels="drop")
    found = bp.from_batches(_pairs(known, 9, rows), X.shape, classes=range(3))
    assert bits(dropping.fit(found, sample_weight=weights)) == bits(
        make().set_params(missing_labels="drop").fit(rows, known, sample_weight=weights)
    )
    found = bp.from_batches(_pairs(known, 9, rows), X.shape, classes=range(3))
    assert bits(dropping.fit(found)) == bits(make().set_params(missing_labels="drop").fit(rows, known))
    cut = ((rows, CODES[11 * i : 11 * i + 11]) for i, rows in enumerate(breaking(X, 150)))
    with pytest.raises(Interrupted):
        make().fit(bp.from_batches(cut, X.shape, classes=range(3)), checkpoint=tmp_path / "c")
    if name == "SupervisedPCA":
        with pytest.raises(bp.errors.CheckpointError, match="the input changed"):
            make().fit(bp.from_batches(_pairs(CODES[::-1], 7), X.shape, classes=range(3)), checkpoint=tmp_path / "c")
    again = bp.from_batches(_pairs(CODES, 7), X.shape, classes=range(3))
    assert bits(make().fit(again, checkpoint=tmp_path / "c")) == bits(expected)


def test_real_labels_come_with_the_rows_in_one_read() -> None:
    y = X[:, :2].astype("f8") ** 2 + 1e6  # far from 0: products about 0 would lose all digits of float32
    y[[0, 1, 7]] += [[1e3], [np.nan], [0]]
    expected = bp.SupervisedPCA(2, missing_labels="drop").fit(X, y)
    rows = np.where(np.arange(240)[:, None] == 1, [[np.nan]], X)
    found = [
        bp.SupervisedPCA(2, missing_labels="drop").fit(bp.from_batches(_pairs(y, size, rows))) for size in (1, 17, 240)
    ]
    assert bits(found[0]) == bits(found[1]) == bits(found[2])
    assert found[0].n_unlabelled_ == 1
    np.testing.assert_allclose(found[0].eigenvalues_, expected.eigenvalues_, rtol=1e-5)
    np.testing.assert_allclose(np.abs(found[0].components_ @ expected.components_.T), np.eye(2), atol=1e-4)
    more = [model.partial_fit(rows, labels) for model, rows, labels in (
        (found[0], bp.from_batches(_pairs(y, 9)), None), (found[1], X, y)
    )]  # fmt: skip
    np.testing.assert_allclose(more[0].eigenvalues_, more[1].eigenvalues_, rtol=1e-6)
    drawn = bp.SupervisedRandomProjection(2, n_features=20, label_gamma=0.1)
    expected = bits(drawn.fit(X, X[:, :2]))
    assert bits(drawn.fit(bp.from_batches(_pairs(X[:, :2], 17), X.shape))) == expected


def test_a_first_batch_without_labels_does_not_say_that_they_are_numbers() -> None:
    known = CODES.astype("U1").astype(object)
    known[:50] = None

    class Loader:
        def __iter__(self) -> Iterator[tuple[Array, Array]]:
            return _pairs(known, 17)

    def dropping() -> Any:
        return bp.SupervisedPCA(2, missing_labels="drop")

    with pytest.raises(ValueError, match="all labels are needed before the rows are read"):
        dropping().fit(bp.from_batches(Loader(), X.shape))


def test_iterations_and_patterns_take_labels_with_the_rows() -> None:
    class Loader:
        def __iter__(self) -> Iterator[tuple[Array, Array]]:
            return _pairs(CODES, 17)

    rows = bp.from_batches(Loader(), X.shape, classes=range(3))
    fisher = bp.FisherDiscriminantAnalysis
    assert bits(fisher().fit(rows)) == bits(fisher().fit(X, CODES))
    tokens = ((x.reshape(-1, 3, 2), y) for x, y in _pairs(CODES, 17))
    found = bp.SupervisedPCA(1).fit(bp.open(bp.from_batches(tokens, classes=range(3)), pattern="n h c -> (n h) c"))
    expected = bp.SupervisedPCA(1).fit(X.reshape(-1, 2), np.repeat(CODES, 3))
    assert found.n_samples_ == 720
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-6)


@pytest.mark.parametrize("name", ["PCA", "ApproximatePCA", "NystromKernelPCA"])
def test_an_unknown_number_of_rows_is_found_in_the_read(name: str) -> None:
    known = fitted(ONE_READ[name](), X)
    events: list[Event] = []
    models = [
        ONE_READ[name]().fit(bp.from_batches(iter(batched(X, size))), progress=events.append) for size in (7, 100)
    ]
    assert bits(models[0]) == bits(models[1])
    assert models[0].n_samples_ == models[0].provenance_.rows == 240
    np.testing.assert_allclose(models[0].transform(X[:5]), known.transform(X[:5]), atol=1e-4)
    if name == "NystromKernelPCA":
        assert models[0].kernel_evaluations_ == known.kernel_evaluations_
    plan = ONE_READ[name]().plan(bp.from_batches(iter(batched(X, 7))))
    assert not plan.rows_known
    assert plan.bytes_read == pytest.approx(1e6 * 24, rel=0.1)
    assert "rows         not known before the read" in str(plan)


def test_the_counted_rows_of_a_list_are_known_before_the_read() -> None:
    rows = bp.from_batches([X[:100], X[100:]])
    assert rows.shape == (240, 6)
    assert bp.PCA(2).plan(rows).rows_known
    assert np.isnan(bp.from_batches(iter([X])).shape[0])


class Interrupted(Exception):
    """The network fails."""


def breaking(rows: Array, at: int, size: int = 11) -> Iterator[Array]:
    for start in range(0, rows.shape[0], size):
        if start >= at:
            raise Interrupted
        yield rows[start : start + size]


@pytest.mark.parametrize("shape", [X.shape, None], ids=["known", "unknown"])
def test_a_fit_that_was_interrupted_skips_what_it_has_and_gives_the_same_bits(shape: Any, tmp_path: Path) -> None:
    whole = bp.PCA(2).fit(bp.from_batches(iter(batched(X, 9)), shape))
    events: list[Event] = []
    with pytest.raises(Interrupted):
        bp.PCA(2).fit(bp.from_batches(breaking(X, 150), shape), checkpoint=tmp_path / "c", progress=events.append)
    stored = [event.segment for event in events if isinstance(event, CheckpointEvent)]
    assert stored == list(range(len(stored)))
    assert len(stored) >= 4
    events.clear()
    rerun = bp.PCA(2).fit(
        bp.from_batches(iter(batched(X, 9)), shape), checkpoint=tmp_path / "c", progress=events.append
    )
    assert bits(rerun) == bits(whole)
    (skipped,) = (event.rows for event in events if isinstance(event, SkipEvent))
    assert skipped > 60
    assert skipped + sum(event.rows for event in events if isinstance(event, GroupEvent)) == 240
    again = bp.PCA(2).fit(bp.from_batches(iter(batched(X, 50)), shape), checkpoint=tmp_path / "c")
    assert bits(again) == bits(whole)


COUNTS = sp.random_array((240, 6), density=0.3, format="csr", dtype="f4", rng=RNG)


def sparse_batches(size: int, form: Any = sp.csr_array) -> list[Any]:
    return [form(COUNTS[i : i + size]) for i in range(0, 240, size)]


@pytest.mark.parametrize("name", ONE_READ)
@pytest.mark.parametrize("shape", [COUNTS.shape, None], ids=["known", "unknown"])
def test_sparse_batches_of_any_size_and_form_give_the_same_bits(name: str, shape: Any) -> None:
    expected = fitted(ONE_READ[name](), COUNTS)
    models = [
        fitted(ONE_READ[name](), bp.from_batches(sparse_batches(size, form), COUNTS.shape))
        for size, form in ((7, sp.csr_array), (240, sp.csc_array), (50, sp.coo_array), (100, sp.csr_matrix))
    ]
    if shape is None and "labels" not in expected._traits.accepts:
        models += [ONE_READ[name]().fit(bp.from_batches(iter(sparse_batches(size)))) for size in (7, 100)]
        models = models[-2:]
    assert len({bits(model) for model in models}) == 1
    np.testing.assert_allclose(models[0].transform(COUNTS), expected.transform(COUNTS), atol=1e-4)


def test_sparse_batches_are_iterated_mapped_and_written_in_their_order(tmp_path: Path) -> None:
    model = bp.PCA(2, solver="krylov", tol=1e-9).fit(bp.from_batches(sparse_batches(9)))
    dense = bp.PCA(2, solver="krylov", tol=1e-9).fit(COUNTS.toarray().astype("f8"))
    np.testing.assert_allclose(model.explained_variance_, dense.explained_variance_, rtol=1e-6)
    scores = model.transform(COUNTS)
    np.testing.assert_allclose(model.transform(bp.from_batches(sparse_batches(70))), scores, atol=1e-12)
    untidy = RIGHT["SciPy CSR array, reversed and doubled indices"].make(tmp_path, COUNTS.toarray())
    ends = untidy.indptr.copy()
    again = bp.PCA(2, solver="krylov", tol=1e-9).fit(bp.from_batches([untidy]))
    np.testing.assert_allclose(again.explained_variance_, model.explained_variance_, rtol=1e-6)
    np.testing.assert_array_equal(untidy.indptr, ends)  # the batch is not changed
    written = model.transform(bp.from_batches(iter(sparse_batches(11))), out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(written, scores, atol=1e-12)
    pairs = [(rows, CODES[i : i + 40]) for i, rows in zip(range(0, 240, 40), sparse_batches(40), strict=True)]
    labelled = bp.FisherDiscriminantAnalysis(1).fit(bp.from_batches(pairs, classes=range(3)))
    np.testing.assert_allclose(
        np.abs(labelled.components_), np.abs(bp.FisherDiscriminantAnalysis(1).fit(COUNTS, CODES).components_), rtol=1e-4
    )
    mixed = bp.PCA(2).fit(bp.from_batches([COUNTS[:100], COUNTS[100:].toarray()]))  # the first batch decides
    assert bits(mixed) == bits(bp.PCA(2).fit(bp.from_batches(sparse_batches(240))))


def test_sparse_batches_of_many_columns_are_planned_by_what_rows_store_and_denser_ones_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = sp.csr_array((np.ones(40, "f4"), (np.arange(40), 7000 * np.arange(40))), (40, 300_000))
    plan = bp.ApproximatePCA(2, bp.sketches.Gaussian(4)).plan(bp.from_batches([wide[:9], wide[9:]]))
    assert plan.bytes_read < 40 * 9000  # as if each stored 1,024 values, not 30,000
    monkeypatch.setattr(batches, "DENSEST", 2)
    monkeypatch.setattr(batches, "FEW", 9)
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"rows 0 to 19 .* 3 values each; .* at most 2 of"):
        bp.PCA(2).fit(bp.from_batches([sp.csr_array(np.tri(40, 3, 2))]))


def test_sparse_blocks_of_batches_stand_side_by_side_and_are_layers() -> None:
    parts = sparse_batches(70)
    sides = [{"a": part[:, :3], "b": part[:, 3:].toarray(), "c": sp.coo_array(part[:, :2])} for part in parts]
    rows = bp.from_batches(sides)
    assert sp.issparse(rows._meta)
    ours = bp.CCA(1).fit(bp.from_batches([{"a": side["a"], "b": side["b"]} for side in sides]))
    expected = bp.CCA(1).fit(COUNTS[:, :3].toarray(), COUNTS[:, 3:].toarray())
    np.testing.assert_allclose(ours.correlations_, expected.correlations_, rtol=1e-5)
    for name, found in bp.fit_layers(sides, bp.PCA(2)).items():
        own = {"a": COUNTS[:, :3], "b": COUNTS[:, 3:], "c": COUNTS[:, :2]}[name]
        np.testing.assert_allclose(found.explained_variance_, bp.PCA(2).fit(own).explained_variance_, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_tensors_are_read_as_those_of_scipy() -> None:
    torch = pytest.importorskip("torch")
    expected = bits(bp.PCA(2).fit(bp.from_batches(sparse_batches(240))))
    vectors = map(torch.from_numpy, (COUNTS.indptr, COUNTS.indices, COUNTS.data))
    by_row = torch.sparse_csr_tensor(*vectors, size=COUNTS.shape, check_invariants=True)
    for one in (by_row, torch.from_numpy(COUNTS.toarray()).to_sparse_coo()):
        assert bits(bp.PCA(2).fit(bp.from_batches([one]))) == expected


def test_a_fit_of_sparse_batches_that_was_interrupted_goes_on_with_batches_of_another_size(tmp_path: Path) -> None:
    whole, other = bp.PCA(2).fit(bp.from_batches(sparse_batches(9), COUNTS.shape)), COUNTS.copy()
    other.data[3] += 1
    for place in ("same", "other"):
        with pytest.raises(Interrupted):
            bp.PCA(2).fit(bp.from_batches(breaking(COUNTS, 150), COUNTS.shape), checkpoint=tmp_path / place)
    again = bp.from_batches(iter(sparse_batches(50)), COUNTS.shape)
    assert bits(bp.PCA(2).fit(again, checkpoint=tmp_path / "same")) == bits(whole)
    with pytest.raises(bp.errors.CheckpointError, match="the input changed"):
        bp.PCA(2).fit(bp.from_batches(batched(other, 50), COUNTS.shape), checkpoint=tmp_path / "other")


def test_a_fit_of_several_reads_is_resumed_where_its_groups_are_no_whole_chunks(tmp_path: Path) -> None:
    rows = bp.from_batches(batched(X, 9), X.shape)

    def fit(stop: float, place: str) -> bp.PCA:
        written = iter(range(1, 1000))

        def interrupt(event: Event) -> None:
            if isinstance(event, CheckpointEvent) and next(written) >= stop:
                raise KeyboardInterrupt

        with dask.config.set(scheduler="threads", num_workers=2):
            return bp.PCA(2, solver="krylov").fit(rows, checkpoint=tmp_path / place, progress=interrupt)

    whole = bits(fit(math.inf, "whole"))
    with pytest.raises(KeyboardInterrupt):
        fit(3, "c")
    assert bits(fit(math.inf, "c")) == whole


KILLED = """
import os, signal, sys
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import bigpca as bp
from bigpca.data import checks
from bigpca.engine import layout

checks.READABLE_BYTES, layout.MIN_GROUP_BYTES, layout.GROUP_BYTES, layout.MIN_GROUPS = 480, 256, 480, 12
X, place, stop, name = np.load(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
model = {"fisher": bp.FisherDiscriminantAnalysis(2), "ridge": bp.Ridge([0.1, 9.0], cv=3)}[name]
beside = np.arange(240) % 3 if name == "fisher" else X[:, :3] ** 2

def pairs():
    for start in range(0, 240, 11):
        if start >= stop:
            os.kill(os.getpid(), signal.SIGKILL)
        yield X[start : start + 11], beside[start : start + 11]

rows = bp.from_batches(pairs(), X.shape, classes=range(3) if name == "fisher" else None)
model.fit(rows, checkpoint=place + "/c").save(place + "/m.zarr")
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "model", "attribute"),
    [("fisher", bp.FisherDiscriminantAnalysis(2), "components_"), ("ridge", bp.Ridge([0.1, 9.0], cv=3), "cv_scores_")],
)
def test_a_killed_process_is_resumed_with_the_same_bits(name: str, model: Any, attribute: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    for stop, code in ((190, -signal.SIGKILL), (240, 0)):
        assert ended(KILLED, tmp_path / "x.npy", tmp_path, stop, name) == code
        assert list((tmp_path / "c").rglob("prefix*"))
    if name != "fisher":  # two sides in memory are cut elsewhere than batches: compared with a run that was not killed
        assert ended(KILLED, tmp_path / "x.npy", tmp_path / "whole", 240, name) == 0
        expected = bp.load(tmp_path / "whole/m.zarr")
        truth = model.fit(X, X[:, :3] ** 2)
        np.testing.assert_allclose(getattr(truth, attribute), getattr(expected, attribute), rtol=1e-4, atol=1e-6)
    else:
        expected = model.fit(X, CODES)
    assert np.array_equal(getattr(bp.load(tmp_path / "m.zarr"), attribute), getattr(expected, attribute))


def test_a_loader_that_shuffles_is_fitted_once_but_not_resumed_and_not_read_twice(tmp_path: Path) -> None:
    class Shuffled:
        def __init__(self) -> None:
            self.epoch = 0

        def __iter__(self) -> Iterator[Array]:
            self.epoch += 1
            yield from batched(X[np.random.default_rng(self.epoch).permutation(240)], 16)

    rows = bp.from_batches(Shuffled(), X.shape)
    expected = bp.PCA(2).fit(X)
    for _ in range(2):
        found = bp.PCA(2, solver="covariance").fit(rows, checkpoint=None)
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    with pytest.raises(Interrupted):
        bp.PCA(2).fit(bp.from_batches(breaking(X, 150), X.shape), checkpoint=tmp_path / "c")
    with pytest.raises(bp.errors.CheckpointError, match=r"the input changed .* the first with rows 0:"):
        bp.PCA(2).fit(rows, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match=r"row \d+ differs from an earlier iteration .* shuffled"):
        bp.PCA(2, solver="krylov").fit(rows)


def _spoilt(rows: Array) -> list[Array]:
    rows = rows.copy()
    rows[137, 3] = np.nan
    return batched(rows, 60)


def _falling() -> Any:
    rows = sp.csr_array(X)
    rows.indptr[3] = 99
    return rows


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "ragged": (
        lambda: iter([X[:50], X[50:, :5]]), ValueError, r"batch 1 .* has shape \(190, 5\), but .* shape \(6,\)"
    ),
    "other dtype": (
        lambda: iter([X[:50], X[50:].astype("f8")]), TypeError, "batch 1 .* is float64, but the first .* float32"
    ),
    "NaN": (lambda: _spoilt(X), bp.errors.NonFiniteError, "row 137"),
    "sparse behind dense": (lambda: iter([X[:50], sp.csr_array(X[50:])]), TypeError, "batch 1 .* first batch is dense"),
    "a column of texts": (
        lambda: [{"id": list("ab") * (len(X) // 2), "b": X}], TypeError,
        r"block 'id': .* from_batches\(batches, column='b'\), and keys= for texts"
    ),
    "damaged CSR": (lambda: [_falling()], ValueError, "indptr falls from"),
    "text": (lambda: iter([np.array([["a"]])]), TypeError, "batch 0 .*: dtype <U1 cannot be used"),
    "None": (lambda: iter([X, None]), TypeError, "batch 1 .from row 240.: dtype object cannot be used"),
    "AnnData": (
        lambda: [pytest.importorskip("anndata").AnnData(X)], TypeError, r"batch 0 .* is AnnData. .*\(batch.X for"
    ),
    "one dimension": (lambda: iter([X[:, 0]]), ValueError, r"batch 0 .* has shape \(240,\); rows of features"),
    "three arrays": (lambda: iter([(X, X, X)]), TypeError, r"has 3 arrays. Give the rows, or the rows and"),
    "mappings": (lambda: iter([{"x": X}]), TypeError, "of several arrays"),
    "empty iterator": (lambda: iter([]), ValueError, "the batches are empty: there is no first batch"),
    "empty list": (list, ValueError, "the batches are empty: there are no rows"),
    "one row": (lambda: [X[:1]], ValueError, "a minimum of 2"),
    "not iterable": (lambda: 3, TypeError, "batches is an int; an iterable"),
    "one array": (lambda: X, TypeError, "batches is an ndarray; an iterable .* Pass one array to fit itself"),
    "a relation": (
        lambda: type("DuckDBPyRelation", (), {"__module__": "duckdb._relation"})(),
        TypeError,
        r"batches is a DuckDBPyRelation; .*from_batches\(X\.to_arrow_reader",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_named(name: str) -> None:
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        bp.PCA(2).fit(bp.from_batches(make()))


MISUSE: dict[str, tuple[Callable[[], Any], str]] = {
    "ends early": (
        lambda: bp.PCA(2).fit(bp.from_batches(iter(batched(X, 9)), (300, 6))), "ended after 240 rows; shape says 300"
    ),
    "more rows": (
        lambda: bp.PCA(2).fit(bp.from_batches(iter(batched(X, 9)), (230, 6))), "more rows than the 230, which shape"
    ),
    "numbers of maps": (
        lambda: bp.PCA(2, preprocess=bp.preprocessing.Standardize(9)).fit(bp.from_batches(iter([X]))),
        r"up to [0-9] reads, 1 of them for the numbers of Standardize\(max_value=9\), but the batches are an iterator",
    ),
    "maps before several parts": (
        lambda: bp.ScoredPCA(1, preprocess=bp.preprocessing.L2()).fit(bp.from_batches(batched(X, 60)), CODES),
        "Map each batch before from_batches, or write the batches",
    ),
    "bad shape": (lambda: bp.from_batches([X], (240, 0)), r"shape = \(240, 0\); positive integers"),
    "maps of another layout": (
        lambda: bp.PCA(2).fit(bp.from_batches([X[:60].reshape(-1, 2, 3), X[60:].reshape(-1, 3, 2)])),
        r"batch 1 .* shape \(180, 3, 2\), but .* announced rows of shape \(2, 3\)",
    ),
    "batches in a list": (
        lambda: bp.PCA(1).fit([X[:120], X[120:]]), r"a list of 2 arrays, .* shape \(120, 6\)\. .* bp\.from_batches\(X\)"
    ),
    "columns in another order": (
        lambda: bp.PCA(2).fit(bp.from_batches([DataFrame(X[:50]), DataFrame(X[50:])[[1, 0, 2, 3, 4, 5]]])),
        r"batch 1 .* has the columns \[1, 0, .* earlier batches have \[0, 1, .* same order were expected",
    ),
    "iterator, several reads": (
        lambda: bp.PCA(2, solver="krylov").fit(bp.from_batches(iter([X]), X.shape)), "krylov takes up to .* an iterator"
    ),
    "iterator twice": (lambda: _twice(bp.from_batches(iter(batched(X, 9)), X.shape)), "row 0 was read already"),
    "labels, unknown number": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(iter([X])), CODES), "labels were given for batches whose number"
    ),
    **{
        f"two sets of labels, {name}": (partial(call, CODES[::-1].copy()), "y was given for batches that bring labels")
        for name, call in {
            "fit": lambda y: bp.SupervisedPCA(1).fit(_labelled(), y),
            "partial_fit": lambda y: bp.FisherDiscriminantAnalysis(1).fit(X, CODES).partial_fit(_labelled(), y),
            "score": lambda y: bp.FisherDiscriminantAnalysis(1).fit(X, CODES).score(_labelled(), y),
            "map": lambda y: bp.roweis_map(_labelled(), y, 2),
        }.items()
    },
    **{
        f"no labelled row left, {made.__name__}": (
            lambda made=made: LEFT.fit(_omitted(made)), "Found array with 0 samples after 240 rows"
        )
        for made in (list, iter)
    },
    "weights, unknown number": (
        lambda: bp.PCA(2).fit(bp.from_batches(iter([X])), sample_weight=np.ones(240)),
        "240 weights, but batches of an unknown number",
    ),
    "labels of an iterator": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(_pairs(CODES, 50))), r"classes=\[...\] of from_batches"
    ),
    "real labels of an RBF kernel": (
        lambda: bp.SupervisedPCA(1, label_kernel="rbf").fit(bp.from_batches(iter([(X, X[:, 0])]))), "all labels are"
    ),
    "a class without a name": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(_pairs(CODES, 50), classes=[0, 1])),
        r"labels of rows 0 to \d+: 1 classes are new: 2. The 2 known classes are 0, 1. Name every class",
    ),
    "a label that is missing": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(_pairs(np.where(np.arange(240) == 77, np.nan, CODES), 50),
                                                        classes=range(3))),
        r"labels of rows \d+ to \d+: 1 of \d+ labels are missing \(row 77\)",
    ),
    "a class of one row": (
        lambda: bp.FisherDiscriminantAnalysis(1).fit(
            bp.from_batches(_pairs(np.where(np.arange(240) == 5, 9, CODES), 50), classes=[0, 1, 2, 9])
        ), r"1 of 4 classes have only one row \(9\)",
    ),
    "targets of another width": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(iter([(X[:50], X[:50]), (X[50:], X[50:, :2])]))),
        "have 2 columns; 6",
    ),
    "a batch without labels": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(iter([(X[:50], X[:50]), X[50:]]))),
        "batch 1 .* has no labels, but the first batch has. Give pairs",
    ),
    "classes without y": (
        lambda: bp.SupervisedPCA(1).partial_fit(bp.from_batches(_pairs(CODES, 50)), classes=[0, 1, 2]),
        "without y. Those of",
    ),
    "labels too few": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches([(X, CODES[:9])])), "240 rows and 9 labels"
    ),
    "fit_transform": (
        lambda: bp.PCA(2).fit_transform(bp.from_batches([X])),
        r"Call fit\(X\) and then transform\(X\)",
    ),
    "keys of an unknown number": (
        lambda: bp.PCA(2).fit(X).transform(bp.from_batches(iter([X])), out="x.zarr", keys=range(240)),
        "keys were given, one for each row, but the batches",
    ),
    "covariates beside": (lambda: bp.PCA(2).fit(bp.from_batches(_pairs(X[:, :2], 50)), covariates=X[:, :2]),
        "^X comes in batches, but X and Z are read side by side, in any order, but batches"),
    "covariates in batches": (lambda: bp.PCA(2).fit(X, covariates=bp.from_batches([X])), "^Z comes .* Write"),
    "Dask": (lambda: bp.from_batches([X]).compute(), "Dask, in any order"),
    "computed": (lambda: bp.PCA(2).fit(bp.from_batches([X]) * 2), "Dask array mul-.* in any order"),
}  # fmt: skip


def _pairs(y: Array, size: int, rows: Array = X) -> Iterator[tuple[Array, Array]]:
    """Rows and their labels, which can be iterated once."""
    return zip(batched(rows, size), batched(y, size), strict=True)


def _labelled() -> Any:
    return bp.from_batches(list(_pairs(CODES, 50)), X.shape)


LEFT = bp.FisherDiscriminantAnalysis(1, missing_labels="drop", nan_policy="omit")


def _omitted(made: Any) -> Any:
    """Batches in which a row has either a label or values."""
    labels, rows = np.where(np.arange(240) < 90, CODES, np.nan), X.copy()
    rows[:90] = np.nan
    return bp.from_batches(made(list(_pairs(labels, 50, rows))), X.shape, classes=range(3))


def _twice(rows: Any) -> None:
    for _ in range(2):
        bp.PCA(2).fit(rows)


@pytest.mark.parametrize("name", MISUSE)
def test_what_batches_cannot_do_is_rejected(name: str) -> None:
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


COPIED: list[int] = []  # rows that came from a device


class OnGPU:
    """An array as CuPy's, which NumPy cannot read."""

    __cuda_array_interface__: ClassVar[dict[str, int]] = {"version": 3}

    def __init__(self, values: Array) -> None:
        self.values, self.shape = values, values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def get(self) -> Array:
        COPIED.append(len(self.values))
        return self.values


class Tensor:
    """A tensor as torch's: on a device, with gradients, of a dtype that NumPy may not have."""

    def __init__(self, values: Array, refused: type[Exception] | None) -> None:
        self.values, self.refused, self.shape, self.ndim = values, refused, values.shape, values.ndim

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.refused is not None:
            raise self.refused("Got unsupported ScalarType BFloat16")
        return np.asarray(self.values, dtype)

    def detach(self) -> Tensor:
        return Tensor(self.values, None if self.refused is RuntimeError else self.refused)

    def cpu(self) -> Tensor:
        COPIED.append(len(self.values))
        return self

    def float(self) -> Tensor:
        return Tensor(self.values.astype("f4"), None)


HALF = X.astype(ml_dtypes.bfloat16)
KINDS: dict[str, Callable[[Array], Any]] = {
    "bfloat16 of ml_dtypes": lambda rows: rows,
    "tensor of bfloat16": lambda rows: Tensor(rows, TypeError),
    "tensor with gradients": lambda rows: Tensor(rows.astype("f4"), RuntimeError),
    "pair of a DataLoader": lambda rows: [Tensor(rows, TypeError), np.zeros(len(rows))],
    "TensorDataset": lambda rows: [rows.astype("f4")],
    "list of rows": lambda rows: list(rows.astype("f4")),
    "masked": lambda rows: np.ma.masked_array(rows.astype("f4")),
    "Fortran order": lambda rows: np.asfortranarray(rows.astype("f4")),
    "feature maps": lambda rows: rows.astype("f4").reshape(-1, 1, 2, 3),
    "torch.Tensor": lambda rows: _torch(rows),
    "cupy.ndarray": lambda rows: OnGPU(rows.astype("f4")),
}


def _torch(rows: Array) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(rows.astype("f4")).to(torch.bfloat16).requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_every_kind_are_read_exactly(kind: str) -> None:
    expected = bits(bp.PCA(2).fit(HALF.astype("f4")))
    given = [KINDS[kind](rows) for rows in batched(HALF, 50)]
    COPIED.clear()
    assert bits(bp.PCA(2).fit(bp.from_batches(given))) == expected
    assert sum(COPIED) in (0, len(HALF))  # each row once
    assert bits(bp.PCA(2).fit(bp.from_batches(iter(given), X.shape))) == expected


@pytest.mark.parametrize("shape", [(240, 1, 2, 3), None], ids=["known", "unknown"])
def test_a_pattern_of_batches_is_that_of_the_stored_samples(shape: Any, tmp_path: Path) -> None:
    maps, pattern = X.reshape(240, 1, 2, 3), "n c h w -> (n h w) c"
    expected = bp.PCA(1).fit(bp.open(maps, pattern=pattern))
    rows = bp.open(bp.from_batches(iter(batched(maps, 17)), shape), pattern=pattern)
    found = bp.PCA(1).fit(rows, checkpoint=tmp_path / "c")
    assert found.n_samples_ == found.provenance_.rows == 1440
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-6)
    rows = bp.open(bp.from_batches(iter(batched(maps, 50)), shape), pattern=pattern)
    assert bits(bp.PCA(1).fit(rows, checkpoint=tmp_path / "c")) == bits(found)


MAPS: dict[str, Callable[[Any, Any], Any]] = {
    "transform": lambda model, rows: model.transform(rows),
    "hotelling_t2": lambda model, rows: model.hotelling_t2(rows),
    "spe": lambda model, rows: model.spe(rows),
    "remove_components": lambda model, rows: model.remove_components(rows, [0]),
    "score_samples": lambda model, rows: model.score_samples(rows),
}


@pytest.mark.parametrize("name", MAPS)
def test_batches_are_mapped_in_their_order(name: str) -> None:
    model = bp.PCA(2, preprocess=bp.preprocessing.L2()).fit(X)
    expected = MAPS[name](model, X)
    for size in (1, 17, 240):
        for shape in (None, X.shape):
            found = MAPS[name](model, bp.from_batches(iter(batched(X, size)), shape))
            assert found.tobytes() == expected.tobytes()


def test_mapped_batches_that_do_not_fit_in_memory_are_rejected_before_a_read() -> None:
    model = bp.PCA(2).fit(X).set_params(memory_limit="100MiB")
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"1,000,000 rows of batches, 8 bytes each, need .* out=path"):
        model.transform(bp.from_batches(iter([X]), (10**6, 6)))


@pytest.mark.parametrize("shape", [X.shape, None], ids=["known", "unknown"])
@pytest.mark.parametrize("form", ["zarr", "parquet", "npy"])
def test_scores_of_batches_are_written_in_their_order(
    shape: Any, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "OUTPUT_CHUNK_BYTES", 400)  # chunks of 50 rows; the last one has 40
    monkeypatch.setattr(project, "OUTPUT_CHUNKS", 1)
    model, out = bp.PCA(2).fit(X), tmp_path / f"x.{form}"
    keys = None if shape is None or form == "npy" else np.arange(240)  # for which .npy has no room
    with pytest.raises(Interrupted):
        model.transform(bp.from_batches(breaking(X, 150), shape), out=out)
    assert not out.exists()
    shuffled = bp.from_batches(iter(batched(X[::-1], 17)), shape)
    found = model.transform(shuffled, out=out, keys=keys)
    assert found.shape == (240, 2)
    np.testing.assert_array_equal(found.compute(), model.transform(X[::-1]))
    assert keys is None or bp.data.stored_keys(out).tolist() == list(map(str, keys))
    assert verify(out).ok if form == "zarr" else True


def test_memory_of_rows_is_used_again_only_if_nobody_holds_them() -> None:
    numbers = np.arange(60.0).reshape(20, 3)
    stream = batches.BatchStream(iter([numbers[i : i + 6] for i in range(0, 20, 6)]), None, None)
    first = stream.read(0, 5)
    place, view = first.ctypes.data, memoryview(first[2:4])
    del first
    second = stream.read(5, 9)
    assert second.ctypes.data != place
    np.testing.assert_array_equal(view, numbers[2:4])
    del view
    third = stream.read(9, 12)
    assert third.ctypes.data == place
    np.testing.assert_array_equal(second, numbers[5:9])
    np.testing.assert_array_equal(third, numbers[9:12])
    assert len(stream.read(12, 30)) == 8
    assert (stream._rooms, len(stream.read(20, 30)), stream._rooms) == ([], 0, [])  # at the end nothing is kept


def test_partial_fit_takes_batches() -> None:
    found = bp.PCA(2).partial_fit(bp.from_batches(iter(batched(X[:150], 9)))).partial_fit(X[150:])
    np.testing.assert_allclose(found.explained_variance_, bp.PCA(2).fit(X).explained_variance_, rtol=1e-5)


def test_the_first_rows_are_kept_for_a_pass_but_not_by_it() -> None:
    stream = batches.BatchStream(iter(batched(X, 50)), X.shape[1:], None)
    np.testing.assert_array_equal(stream.read(0, 60), X[:60])
    assert stream.has(0)  # as a pass asks before it reads
    np.testing.assert_array_equal(stream.read(0, 60), X[:60])
    stream = batches.BatchStream(iter(batched(X, 50)), X.shape[1:], None)
    assert stream.has(0)
    stream.read(0, 60)
    with pytest.raises(ValueError, match="row 0 was read already"):
        stream.read(0, 60)


def tensors_of(lists: Any) -> Any:
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (5,)), lists)


def test_the_only_column_of_lists_needs_no_name_and_batches_may_have_no_rows() -> None:
    parts = np.split(np.random.default_rng(0).standard_normal((60, 5)).astype("f4"), 3)
    lists = [pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), 5) for part in parts]
    tables = [pa.table({"emb": one, "id": pa.array(range(20))}) for one in lists]
    tensors = [table.set_column(0, "emb", tensors_of(one)) for table, one in zip(tables, lists, strict=True)]
    expected = bits(bp.PCA(2).fit(bp.from_batches(parts)))
    for form in (tables, tensors, [tables[0], tables[0][:0], *tables[1:]], [pl.from_arrow(table) for table in tables]):
        assert bits(bp.PCA(2).fit(bp.from_batches(form))) == expected


IDS = [f"image {i}" for i in range(240)]


def _tables(rows: Array, ids: Any) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    return pa.table({"id": ids, "emb": lists, **{f"x{j}": column for j, column in enumerate(rows.T)}})


LIBRARIES: dict[str, Callable[[pa.Table], Any]] = {
    "arrow table": lambda table: table,
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "pandas": lambda table: table.to_pandas(),
    "polars": pl.from_arrow,
    "dict of arrays": lambda table: {"emb": np.stack(table["emb"].to_numpy()), **_numbers(table)},
    "dict of lists": lambda table: table.to_pydict(),
}


def _numbers(table: pa.Table) -> dict[str, Array]:
    return {name: table[name].to_numpy() for name in table.column_names if name != "emb"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_is_chosen_by_name_and_keys_come_along(library: str, tmp_path: Path) -> None:
    given = [LIBRARIES[library](_tables(X[i : i + 70], IDS[i : i + 70])) for i in range(0, 240, 70)]
    values = X.astype(bp.from_batches(given, column="emb", keys="id").dtype)  # that of lists of numbers is float64
    model = bp.PCA(2).fit(values)
    assert bits(bp.PCA(2).fit(bp.from_batches(given, column="emb", keys="id"))) == bits(model)
    for number, shape in enumerate((X.shape, None)):
        rows = bp.from_batches(iter(given), shape, column="emb", keys="id")
        out = model.transform(rows, out=tmp_path / f"scores{number}.zarr")
        np.testing.assert_array_equal(out.compute(), model.transform(values))
        assert bp.data.stored_keys(tmp_path / f"scores{number}.zarr").tolist() == IDS
    again = bp.from_batches([given[0], given[0]], column="emb", keys="id")
    with pytest.raises(ValueError, match=r"batch 1 \(from row 70\) has 70 keys of earlier rows: 'image 0'"):
        model.transform(again, out=tmp_path / "again.zarr")


def test_tables_and_scanners_of_arrow_are_read_again_for_every_read(tmp_path: Path) -> None:
    table = _tables(X, IDS)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=70)
    stored = dataset(tmp_path / "x.parquet")
    expected = bits(bp.PCA(2, solver="krylov").fit(X))
    for given in (table, stored, stored.scanner(columns=["emb"])):
        rows = bp.from_batches(given, X.shape, column="emb")
        assert bits(bp.PCA(2, solver="krylov").fit(rows)) == expected


def test_all_columns_but_the_keys_are_features_and_keep_their_order() -> None:
    table = pa.table({"id": range(240), **{f"x{j}": column for j, column in enumerate(X.T)}})
    parts = [table[i : i + 80] for i in range(0, 240, 80)]
    names = [f"x{j}" for j in range(6)]
    expected = bp.PCA(2).fit(pd.DataFrame(X, columns=names))
    for form in ("arrow table", "pandas", "polars"):
        given = [LIBRARIES[form](part) for part in parts]
        assert bits(bp.PCA(2).fit(bp.from_batches(given, keys="id"))) == bits(expected)
        with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
            expected.transform(bp.from_batches([part.select(names[::-1]) for part in parts]))
    swapped = [parts[0], parts[1].select(parts[1].column_names[::-1])]
    with pytest.raises(ValueError, match=r"batch 1 .* has the columns .* same order were expected"):
        bp.PCA(1).fit(bp.from_batches(swapped))
    with pytest.raises(checks.MemberError, match=r"batch 0 has the columns \['a', 'b'\] beside its keys. Choose with"):
        bp.from_batches([{"id": [1], "a": [1.0], "b": [2.0]}], keys="id")


@pytest.mark.parametrize(
    ("batch", "column", "said"),
    [
        ({"a": np.ones((3, 2))}, "emb", r"batch 0 has no column 'emb'; it has \['a'\]"),
        (np.ones((3, 2)), "emb", "batch 0 is an ndarray, which has no columns. Leave column= and"),
        (pa.table({"a": [[1.0, 2.0]], "b": [[1.0, 2.0]]}), None, "2 columns .* hold lists.* column=: 'a'"),
        (pa.table({"emb": [[1.0, 2.0], [1.0]]}), "emb", "the list of row 1 has 1 values; 2 were expected"),
        ({"emb": [[1.0, 2.0], [1.0]]}, "emb", "rows of different lengths, from 1 to 2"),
        ({"emb": ["a", "b"]}, "emb", "dtype <U1 cannot be used"),
    ],
)
def test_batches_whose_column_cannot_be_rows_are_rejected(batch: Any, column: str | None, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        bp.PCA(1).fit(bp.from_batches([batch], column=column))
