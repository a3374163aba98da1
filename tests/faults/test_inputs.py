"""An input that changes between two reads stops the fit; one that cannot be read for a moment is read again."""

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix

import bigpca as bp
from bigpca.data.dask_arrays import open_source
from bigpca.data.sources import row_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.engine.events import DoneEvent, Event, PassEvent
from bigpca.storage import files
from tests.data import savers
from tests.data.sparse_savers import to_h5ad, to_zarr
from tests.passes.kit import bits, moments_of, normal, write_store

N, D = 500, 24
pytestmark = pytest.mark.usefixtures("small_groups")


MODELS: dict[str, Callable[[], Any]] = {
    "krylov": lambda: bp.PCA(3, solver="krylov", tol=1e-2),
    "nystrom": lambda: bp.NystromKernelPCA(3, kernel="rbf", gamma=0.05, n_landmarks=30),
    "scored": lambda: bp.ScoredPCA(3, n_features_to_select=5),
    "scored, preprocessed": lambda: bp.ScoredPCA(3, n_features_to_select=5, preprocess=bp.preprocessing.L2()),
}


@pytest.mark.parametrize("make", [lambda X: X, lambda X: X * 2], ids=["direct", "general"])
@pytest.mark.parametrize("name", MODELS)
def test_a_chunk_that_is_rewritten_between_two_reads_stops_the_fit(name: str, make: Any, store: Path) -> None:
    passes: list[Event] = []

    def rewrite(event: Event) -> None:
        if isinstance(event, PassEvent):
            passes.append(event)
            if len(passes) == 2:
                zarr.open_array(store)[25:50] = 7.0

    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(ValueError, match=r"the input changed while it was read: .*Start again|yields different values"),
    ):
        MODELS[name]().fit(make(bp.open(store)), np.arange(N) % 3, progress=rewrite)
    assert len(passes) >= 2


AT_ANY_EVENT: dict[str, Callable[..., bytes]] = {
    "one pass": lambda X, **options: bp.PCA(2, solver="covariance").fit(X, **options).components_.tobytes(),
    "two": lambda X, **options: (
        bp.ApproximatePCA(2, bp.sketches.Gaussian(4), approximation="ritz").fit(X, **options).components_.tobytes()
    ),
    "some that note nothing": lambda X, **options: (
        bp.PCA(2, solver="krylov", random_state=0, max_passes=3).fit(X, **options).components_.tobytes()
    ),
    "labels": lambda X, **options: (
        bp.FisherDiscriminantAnalysis(1).fit(X, np.arange(24) % 2, **options).components_.tobytes()
    ),
    "beside": lambda X, **options: bp.Ridge(0.5).fit(X, normal(24, 2, seed=2), **options).coef_.tobytes(),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"chunks": (3, 6), "compressors": None},
    "zstd": {"chunks": (3, 6)},
    "columns": {"chunks": (3, 4)},
    "shards": {"chunks": (1, 6), "shards": (3, 6)},
    "absent": {"chunks": (3, 6), "fill_value": 0.5},
    "sparse": {},
}


def interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def raises_if_any(message: str) -> Iterator[None]:
    """Check the error about the rows that is raised, if one is."""
    try:
        yield
    except (ValueError, bp.errors.CheckpointError) as error:
        if message not in str(error):
            raise


Files = dict[str, bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Files, Files]]:
    """For each layout, files of the rows, and files of the same rows with one chunk changed."""

    @cache
    def files(layout: str) -> tuple[Files, Files]:
        old = abs(normal(24, 6)).astype(np.float32)
        new = old.copy()
        new[9:12] += 1  # one chunk of rows
        if layout == "absent":
            old[9:12] = 0.5
        before, after = (files_of(rows, layout, tmp_path_factory.mktemp("rows")) for rows in (old, new))
        return before, after

    return files


def files_of(rows: np.ndarray, layout: str, folder: Path) -> Files:
    if layout == "sparse":
        path = to_zarr(folder, csr_matrix(rows), chunks=(16,))
    else:
        path = folder / "x.zarr"
        zarr.create_array(path, shape=rows.shape, dtype=rows.dtype, **LAYOUTS[layout])[:] = rows
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def write_over(path: Path, files: Files) -> None:
    """Write a store over another one; files that are as they were are not touched."""
    for file in sorted(one for one in path.rglob("*") if one.is_file()):
        if str(file.relative_to(path)) not in files:
            file.unlink()
    for name, content in files.items():
        file = path / name
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "new").write_bytes(content)
            (path.parent / "new").replace(file)


CHECKPOINTS = ("none", "new", "resumed")
# All pairs of a layout and a checkpoint, and of a fit and a checkpoint.
PAIRS = [
    ([*AT_ANY_EVENT][(i + j) % len(AT_ANY_EVENT)], layout, checkpoint)
    for i, layout in enumerate(LAYOUTS)
    for j, checkpoint in enumerate(CHECKPOINTS)
]


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize(("name", "layout", "checkpoint"), PAIRS)
def test_a_chunk_that_changes_at_any_event_stops_the_fit_or_was_read_before_that(
    name: str, layout: str, checkpoint: str, tmp_path: Path, written: Callable[[str], tuple[Files, Files]]
) -> None:
    """With a checkpoint too, also as it is resumed: nothing is a mixture."""
    path, fit, counted = tmp_path / "x.zarr", AT_ANY_EVENT[name], list[int]()
    old, new = written(layout)

    def opened() -> Any:
        return bp.open(path, member="X" if layout == "sparse" else None, missing_chunks="fill")

    def seen(number: int, act: Callable[[], object] = lambda: write_over(path, new), **options: Any) -> Any:
        """Fit, and change the rows at an event of that number; None if that is an error."""
        write_over(path, old)
        X, events = opened(), list[Event]()

        def change(event: Event) -> None:
            events.append(event)
            if len(events) == number:
                act()

        found = None
        with raises_if_any("the input changed"):
            found = fit(X, progress=change, **options)
        counted.append(len(events))
        return found

    with dask.config.set(scheduler="sync"):
        write_over(path, new)
        expected = fit(opened())
        before = seen(0)
        assert before not in (None, expected)
        if checkpoint == "none":
            assert seen(1) in (None, expected)  # the plan, before any read
            found = [seen(number) for number in range(2, counted[0] + 1)]
            stopped = found.count(None)
            assert stopped
            assert found == [None] * stopped + [before] * (len(found) - stopped)
            return
        seen(0, checkpoint=tmp_path / "whole")
        if checkpoint == "resumed":
            with pytest.raises(KeyboardInterrupt):
                seen(counted[-1] * 2 // 3, interrupt, checkpoint=tmp_path / "half")
        for number in range(1, counted[-1] + 1):
            own = tmp_path / f"{number}"
            if checkpoint == "resumed":
                shutil.copytree(tmp_path / "half", own)
            found = seen(number, checkpoint=own)
            if counted[-1] < number:  # a resumed fit has fewer
                break
            assert found in (None, before, expected)
            with raises_if_any("the input changed since the checkpoint"):
                assert fit(opened(), checkpoint=own) == expected


HOW: dict[str, Callable[[bytes], bytes]] = {
    "other bytes": lambda data: data[: len(data) // 2] + bytes(255 - byte for byte in data[len(data) // 2 :]),
    "the first half": lambda data: data[: len(data) // 2],
}
READ_APART = [  # each by another function
    savers.save_zarr, savers.save_zarr_columns, savers.save_zarr_sharded, savers.save_npy, savers.save_npy_fortran,
    savers.save_hdf5_chunked, to_zarr, to_h5ad,
]  # fmt: skip
BY_LIBRARIES = [savers.save_parquet]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("save", READ_APART + BY_LIBRARIES, ids=lambda save: save.__name__)
def test_a_file_that_is_written_over_while_it_is_read_stops_the_fit_and_is_named(
    save: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a look at it as it is opened, and before its bytes are read, whatever a decoder does with them.

    Or before a library opens it.
    """
    rows = savers.matrix("f4")
    path = save(tmp_path, csr_matrix(rows * (rows > 0)) if save.__name__.startswith("to_") else rows)
    for file in tmp_path.rglob("*"):
        os.utime(file, ns=(0, 0))
    X, reads, over = bp.open(path), list[Event](), list[str]()

    def write_over(path: Any, descriptor: int | None = None) -> os.stat_result:
        found = check(path, descriptor)
        if reads and not over and os.path.isfile(path) and not path.endswith(files.DOCUMENTS):
            over.append(path)
            Path(path).write_bytes(HOW[how](Path(path).read_bytes()))
        return found

    def follow(event: Event) -> None:
        if isinstance(event, PassEvent):
            reads.append(event)
            if save in BY_LIBRARIES:
                write_over(str(path))

    check = files.check_regular
    monkeypatch.setattr(files, "check_regular", write_over)
    with dask.config.set(scheduler="sync"), pytest.raises(bp.errors.InputChangedError) as raised:
        bp.PCA(2, solver="covariance").fit(X, progress=follow)
    assert f"the input changed while it was read: {over[0]} no longer has" in str(raised.value)


@pytest.mark.parametrize("how", ["linked", "restored", "there"])
@pytest.mark.parametrize("save", READ_APART + BY_LIBRARIES, ids=lambda save: save.__name__)
def test_lazy_results_of_files_that_were_written_over_since_they_were_opened_are_errors(
    save: Any, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the times of modification are restored, but on other machines. Hard links move only times of change."""
    rows = savers.matrix("f4")
    path = save(tmp_path, csr_matrix(rows * (rows > 0)) if save.__name__.startswith("to_") else rows)
    X = bp.open(path)
    model = bp.PCA(2).fit(X)
    mapped, copy = model.transform(path), pickle.loads(pickle.dumps(X))
    if how == "there":
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="there"))
    for file in [one for one in tmp_path.rglob("*") if one.is_file() and one.name not in files.DOCUMENTS]:
        times = file.stat()
        if how == "linked":
            os.link(file, f"{file}.link")
        else:
            file.write_bytes(file.read_bytes())
            os.utime(file, ns=(0, 0 if how == "there" else times.st_mtime_ns))
    changed = pytest.raises(bp.errors.InputChangedError, match=r"the input changed while it was read")
    for lazy in (X[3:5], copy.sum(axis=0) if X._meta.__class__ is np.ndarray else copy, mapped, model.transform(X)):
        with nullcontext() if how == "linked" else changed, dask.config.set(scheduler="sync"):
            lazy.compute()


def test_a_lazy_result_of_a_store_that_is_replaced_as_it_is_read_has_no_rows_of_both(
    store: Path, tmp_path: Path
) -> None:
    write_store(tmp_path / "y.zarr", normal(N, D, seed=2), (25, D))

    def replaced(block: Any, block_info: Any = None) -> Any:
        if block_info[0]["chunk-location"][0] == 3:
            store.rename(tmp_path / "old.zarr")
            (tmp_path / "y.zarr").rename(store)
        return block

    small = open_source(row_source(store), rows=(25,) * 20)
    with dask.config.set(scheduler="sync"), pytest.raises(bp.errors.InputChangedError):
        small.map_blocks(replaced, dtype=small.dtype).compute(optimize_graph=False)


def link(path: Path) -> Path:
    os.symlink(path, path.with_name("link.zarr"))
    return path.with_name("link.zarr")


GIVEN: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path, "slash": lambda path: f"{path}/", "link": link, "relative": os.path.relpath,
    "zarr": zarr.open_array, "opened": bp.open, "columns": lambda path: bp.open(path, columns=[1, 3, 20]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("work", "given", "scheduler"),  # all pairs of them
    [
        (work, given, ("sync", "threads")[(i + j) % 2])
        for i, work in enumerate(("fit", "transform"))
        for j, given in enumerate(GIVEN)
    ],
)
def test_the_first_read_of_a_chunk_that_has_changed_stops_the_pass(
    work: str, given: str, scheduler: str, store: Path, tmp_path: Path
) -> None:
    """Rather than a look at all files after it; its path is that of the look, however the rows are given."""
    events, model = list[Event](), bp.PCA(2, solver="covariance")
    X = GIVEN[given](store)
    read = model.fit if work == "fit" else partial(model.fit(X).transform, out=tmp_path / "out.zarr")

    def change(event: Event) -> None:
        events.append(event)
        if isinstance(event, PassEvent):  # after the look, before the first read
            zarr.open_array(store)[-25:] = 7.0

    with (
        dask.config.set(scheduler=scheduler),
        pytest.raises(ValueError, match=r"the input changed while it was read: .*/c/19/0 no longer has the size"),
    ):
        read(X, progress=change)
    assert not any(isinstance(event, DoneEvent) for event in events)
    assert not (tmp_path / "out.zarr").exists()


def test_an_input_that_only_someone_reads_meanwhile_has_not_changed(store: Path) -> None:
    with dask.config.set(scheduler="sync"):
        MODELS["krylov"]().fit(bp.open(store), progress=lambda event: zarr.open_array(store, mode="r")[:25])


@dataclass(frozen=True)
class UnsteadyRows(ZarrRows):
    """Rows whose reads fail so many times, each at its first row, before they succeed; counted by files."""

    folder: str
    failures: int
    error: type[Exception]

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> Any:
        for attempt in range(self.failures):
            mark = Path(self.folder, f"{start}-{attempt}")
            if start % 250 == 0 and not mark.exists():
                mark.touch()
                message = "the store did not answer"
                raise OSError(errno.EIO, message) if self.error is OSError else self.error(message)
        return super().read_block(start, stop, columns)


def unsteady(store: Path, failures: int, error: type[Exception]) -> da.Array:
    folder = store.with_name(f"failures-{failures}-{error.__name__}")
    folder.mkdir()
    return open_source(UnsteadyRows.of(ZarrReader(store), str(folder), failures, error))


@pytest.mark.parametrize("error", [OSError, bp.errors.CorruptedChunkError])
def test_a_read_that_fails_twice_is_tried_again_to_the_same_bits(error: type[Exception], store: Path) -> None:
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
        assert bits(moments_of(unsteady(store, 2, error))) == expected
    assert len(os.listdir(store.with_name(f"failures-2-{error.__name__}"))) == 2 * 2  # two reads of two failures


@pytest.mark.parametrize("error", [OSError, bp.errors.CorruptedChunkError])
def test_a_read_that_fails_three_times_is_an_error(error: type[Exception], store: Path) -> None:
    with dask.config.set(scheduler="sync"), pytest.raises(error, match="the store did not answer"):
        moments_of(unsteady(store, 3, error))
