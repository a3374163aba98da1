"""Rows that come in batches: the bits of rows in memory, resumed in order, and every way in which batches are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca.data import batches, checks
from bigpca.passes.engine.events import CheckpointEvent, Event, GroupEvent, SkipEvent
from bigpca.passes.reading import layout
from tests.estimators.test_every_estimator import CASES, READING, bits

Array = NDArray[Any]
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((240, 6)) * 0.6 ** np.arange(6) + RNG.standard_normal((3, 6))[np.arange(240) % 3]).astype("f4")
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
    monkeypatch.setattr(checks, "NATIVE_BYTES", 480)
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "GROUP_BYTES", 480)
    monkeypatch.setattr(layout, "MIN_GROUPS", 12)
    monkeypatch.setattr(batches, "OPEN_BYTES", 24 * 300)


def batched(rows: Array, size: int) -> list[Array]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def fitted(model: Any, rows: Any, **options: Any) -> Any:
    return model.fit(rows, CODES, **options) if model._labelled else model.fit(rows, **options)


@pytest.mark.parametrize("name", READING)
def test_batches_give_the_bits_of_rows_in_memory_or_are_rejected_before_a_read(name: str) -> None:
    case = CASES[name]
    y = case.y
    pairs = batched(X, 7) if y is None else list(zip(batched(X, 7), batched(y, 7), strict=True))
    if name in IN_ANY_ORDER:
        with pytest.raises((ValueError, TypeError), match="in any order, but batches"):
            case.make().fit(bp.from_batches(pairs))
        return
    expected = case.make().fit(X) if y is None else case.make().fit(X, y)
    assert bits(case.make().fit(bp.from_batches(pairs))) == bits(expected)


@pytest.mark.parametrize("name", ONE_READ)
@pytest.mark.parametrize("threads", [1, 3])
def test_no_bit_depends_on_where_batches_end_or_on_threads(name: str, threads: int) -> None:
    expected = bits(fitted(ONE_READ[name](), X))
    with dask.config.set(scheduler="threads", num_workers=threads):
        for size in (1, 17, 240):
            rows = bp.from_batches(iter(batched(X, size)), shape=X.shape)
            assert bits(fitted(ONE_READ[name](), rows)) == expected


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
    for start in range(0, len(rows), size):
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
    with pytest.raises(bp.CheckpointError, match=r"the input changed .* the first with rows 0:"):
        bp.PCA(2).fit(rows, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match=r"row \d+ is not the one that an earlier iteration .* shuffled"):
        bp.PCA(2, solver="krylov").fit(rows)


def _spoilt(rows: Array) -> list[Array]:
    rows = rows.copy()
    rows[137, 3] = np.nan
    return batched(rows, 60)


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "ragged": (
        lambda: iter([X[:50], X[50:, :5]]), ValueError, r"batch 1 \(from row 50\) has shape \(190, 5\); .* \(6,\) were"
    ),
    "other dtype": (
        lambda: iter([X[:50], X[50:].astype("f8")]), TypeError, "batch 1 .* is float64, but the first .* float32"
    ),
    "NaN": (lambda: _spoilt(X), bp.NonFiniteError, "row 137"),
    "text": (lambda: iter([np.array([["a"]])]), TypeError, "dtype <U1 cannot be used"),
    "one dimension": (lambda: iter([X[:, 0]]), ValueError, r"batch 0 .* has shape \(240,\); rows of features"),
    "three arrays": (lambda: iter([(X, X, X)]), TypeError, "has 3 arrays; rows, or rows and labels"),
    "mappings": (lambda: iter([{"x": X}]), TypeError, "of several arrays"),
    "empty iterator": (lambda: iter([]), ValueError, "the batches are empty: there is no first batch"),
    "empty list": (list, ValueError, "the batches are empty: there are no rows"),
    "one row": (lambda: [X[:1]], ValueError, "a minimum of 2"),
    "not iterable": (lambda: 3, TypeError, "batches is a int; an iterable"),
    "one array": (lambda: X, TypeError, "batches is a ndarray; an iterable"),
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
    "bad shape": (lambda: bp.from_batches([X], (240, 0)), r"shape = \(240, 0\); positive integers"),
    "iterator, several reads": (
        lambda: bp.PCA(2, solver="krylov").fit(bp.from_batches(iter([X]), X.shape)), "krylov takes up to .* an iterator"
    ),
    "unknown number, several reads": (
        lambda: bp.PCA(2, solver="krylov").plan(bp.from_batches(batch for batch in [X])), "an iterator"
    ),
    "iterator twice": (lambda: _twice(bp.from_batches(iter(batched(X, 9)), X.shape)), "row 0 was read already"),
    "labels, unknown number": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(iter([X])), CODES), "labels were given for batches whose number"
    ),
    "labels of an iterator": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches(iter([(X, CODES)]))), r"call partial_fit\(X, y\) for each batch"
    ),
    "labels too few": (
        lambda: bp.SupervisedPCA(1).fit(bp.from_batches([(X, CODES[:9])])), "240 rows and 9 labels"
    ),
    "transform": (lambda: bp.PCA(2).fit(X).transform(bp.from_batches([X])), "map batches one by one"),
    "fit_transform": (lambda: bp.PCA(2).fit_transform(bp.from_batches([X])), "map batches one by one"),
    "transform to a file": (
        lambda: bp.PCA(2).fit(X).transform(bp.from_batches([X]), out="x.zarr"), "bigpca.FeatureWriter"
    ),
    "Dask": (lambda: bp.from_batches([X]).compute(), "Dask, in any order"),
    "computed": (lambda: bp.PCA(2).fit(bp.from_batches([X]) * 2), "Dask array mul-.* in any order"),
}  # fmt: skip


def _twice(rows: Any) -> None:
    for _ in range(2):
        bp.PCA(2).fit(rows)


@pytest.mark.parametrize("name", MISUSE)
def test_what_batches_cannot_do_is_rejected(name: str) -> None:
    call, message = MISUSE[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


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
}


def _torch(rows: Array) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(rows.astype("f4")).to(torch.bfloat16).requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_every_kind_are_read_exactly(kind: str) -> None:
    expected = bits(bp.PCA(2).fit(HALF.astype("f4")))
    given = [KINDS[kind](rows) for rows in batched(HALF, 50)]
    assert bits(bp.PCA(2).fit(bp.from_batches(given))) == expected
    assert bits(bp.PCA(2).fit(bp.from_batches(iter(given), X.shape, "f4"))) == expected


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


def test_dtype_converts_batches() -> None:
    given = [X[:100].astype("f8"), X[100:].astype("f4")]
    assert bits(bp.PCA(2).fit(bp.from_batches(given, dtype="f4"))) == bits(bp.PCA(2).fit(X))
    with pytest.raises(TypeError, match=r'batch 0 .* is float64, which int16 does not represent. Pass dtype="float64"'):
        bp.PCA(2).fit(bp.from_batches(given, dtype="i2"))


def test_partial_fit_takes_batches() -> None:
    found = bp.PCA(2).partial_fit(bp.from_batches(iter(batched(X[:150], 9)))).partial_fit(X[150:])
    np.testing.assert_allclose(found.explained_variance_, bp.PCA(2).fit(X).explained_variance_, rtol=1e-5)
