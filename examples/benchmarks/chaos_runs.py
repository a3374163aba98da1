"""What chaos.py and chaos_phases.py run and disturb: every kind of fit, question and output, on small slow stores.

usage: python examples/benchmarks/chaos_runs.py NAME DIRECTORY

One run of that name in this process, undisturbed: its digest and how often its data was read.
"""

import argparse
import asyncio
import faulthandler
import hashlib
import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, Nanny, Scheduler
from distributed.utils import LoopRunner, get_mp_context

import bigpca as bp
from bigpca.data import lagged
from bigpca.data.dask_arrays import open_source
from bigpca.data.zarr_arrays import ZarrReader, ZarrRows
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, GroupEvent, PassEvent
from bigpca.engine.run import Run
from bigpca.passes import side_by_side, sweeps
from bigpca.records import pack
from bigpca.report.describing import write_report

SHAPES = {"tall": (3200, 64), "short": (640, 16), "wide": (160, 1800)}
CHUNKS = {"tall": ((25, 64), (40, 64), (57, 64)), "short": ((10, 16), (17, 16)), "wide": ((160, 30), (160, 47))}
PATIENCE = float(os.environ.get("CHAOS_PATIENCE", "1"))  # by which all limits in time are multiplied
WORKERS, WORKERS_TIMEOUT, START_SECONDS = 2, 45.0 * PATIENCE, 90.0 * PATIENCE


def _roweis() -> Any:
    return bp.RoweisDiscriminantAnalysis(3, r1=0.4, r2=0.7)


def _nystrom(sampling: str) -> Any:
    return bp.NystromKernelPCA(3, kernel="rbf", gamma=0.05, n_landmarks=40, sampling=sampling)


ESTIMATORS: dict[str, tuple[str, Callable[[], Any]]] = {  # name -> (store, what fits it)
    "covariance": ("tall", lambda: bp.PCA(5, solver="covariance")),
    "scale": ("tall", lambda: bp.PCA(5, solver="covariance", scale=True)),
    "krylov": ("tall", lambda: bp.PCA(4, solver="krylov", tol=1e-2)),
    "dot": ("wide", lambda: bp.PCA(5, solver="dot")),
    "rotated": ("tall", lambda: bp.RotatedPCA(estimator=bp.PCA(4, solver="krylov", tol=1e-2))),
    "covariates": ("tall", lambda: bp.PCA(3)),
    "approximate": ("tall", lambda: bp.ApproximatePCA(4, sketch=bp.sketches.Gaussian(20))),
    "kernel krylov": ("short", lambda: bp.KernelPCA(2, kernel="laplacian", solver="krylov", tol=1e-2)),
    "kernel dense": ("short", lambda: bp.KernelPCA(3, kernel="rbf", solver="dense")),
    "kernel inverse": ("short", lambda: bp.KernelPCA(2, kernel="rbf", fit_inverse_transform=True)),
    "approximate kernel": ("short", lambda: bp.ApproximateKernelPCA(2, kernel="rbf")),
    "nystrom": ("tall", lambda: bp.NystromKernelPCA(3, kernel="rbf", gamma=0.05, n_landmarks=40)),
    "kmeans": ("tall", lambda: _nystrom("kmeans")),
    "column-norm": ("tall", lambda: _nystrom("column-norm")),
    "kernel supervised": ("tall", lambda: bp.KernelSupervisedPCA(2, kernel="rbf", gamma=0.05, n_landmarks=40)),
    "kernel pairs": ("short", lambda: bp.KernelSupervisedPCA(2, kernel="rbf", solver="pairs")),
    "kernel roweis": ("tall", lambda: bp.KernelRoweisDiscriminantAnalysis(2, kernel="rbf", gamma=0.05, n_landmarks=40)),
    "supervised": ("tall", lambda: bp.SupervisedPCA(2)),
    "fisher": ("tall", lambda: bp.FisherDiscriminantAnalysis(2)),
    "roweis": ("tall", _roweis),
    "groups": ("tall", lambda: bp.PCA(3, solver="covariance")),
    "folds": ("tall", lambda: bp.PCA(bp.rules.CrossValidated(cv=3), solver="covariance")),
    "scored": ("tall", lambda: bp.ScoredPCA(3, n_features_to_select="cv", estimator=bp.PCA(3))),
    "windows": ("tall", lambda: bp.PCA(3, solver="krylov", tol=1e-2)),
    "factor analysis": ("tall", lambda: bp.FactorAnalysis(2, max_iter=5000)),
    "tica": ("tall", lambda: bp.TICA(3, lag=2)),
    "slow features": ("tall", lambda: bp.SlowFeatureAnalysis(2)),
    "noise fraction": ("tall", lambda: bp.MinimumNoiseFraction(2)),
    "contrastive": ("tall", lambda: bp.ContrastivePCA(2, alpha=0.5)),
    "correspondence": ("tall", lambda: bp.CorrespondenceAnalysis(2)),
    "cca": ("tall", lambda: bp.CCA(2)),
    "pls": ("tall", lambda: bp.PLSRegression(2)),
    "pls of folds": ("tall", lambda: bp.PLSRegression(bp.rules.CrossValidated(cv=3))),
    "ridge": ("tall", lambda: bp.Ridge([0.1, 10.0], cv=3)),
}
GIVEN = {  # name -> what fit takes beside X
    **dict.fromkeys(("supervised", "fisher", "roweis", "contrastive", "scored"), ("y", "labels")),
    **dict.fromkeys(("kernel supervised", "kernel pairs", "kernel roweis"), ("y", "labels")),
    **dict.fromkeys(("cca", "pls", "pls of folds", "ridge"), ("y", "responses")),
    "groups": ("groups", "labels"),
    "covariates": ("covariates", "responses"),
}


def _fit_layers(X: Any, places: "Places", progress: Callable[[Any], None]) -> Any:
    """Two layers of batches, which this process iterates over itself."""
    rows = bp.open(places.folder / "tall.zarr")
    blocks = (np.asarray(rows[i : i + 100]) for i in range(0, len(rows), 100))
    checkpoint = places.run / "checkpoint" if places.checkpoint else None
    layers = {"all": bp.PCA(3), "few": bp.FactorAnalysis(1)}
    with telling(progress):
        fitted = bp.fit_layers(({"all": one, "few": one[:, :9]} for one in blocks), layers, checkpoint=checkpoint)
    return {name: digest_of_model(model) for name, model in fitted.items()}


def _report(X: Any, places: "Places", progress: Callable[[Any], None]) -> Any:
    """A page with scores that are computed as they are read."""
    model, classes = bp.load(places.folder / "classes.zarr"), np.arange(len(X)) % 3
    out = places.run / "out.html"
    options = {"scores": model.transform(X), "labels": classes, "overwrite": True}
    with telling(progress):
        return Path(write_report(model, out, **options)).read_bytes()


QUESTIONS: dict[str, Callable[[Any, "Places", Callable[[Any], None]], Any]] = {
    "reconstruction error": lambda X, at, p: bp.quality.reconstruction_error(at.model, X, progress=p),
    "standard errors": lambda X, at, p: bp.quality.standard_errors(at.model, X, progress=p),
    "extremes": lambda X, at, p: bp.quality.extremes(at.model, X, progress=p),
    "alignment": lambda X, at, p: bp.quality.procrustes(X, X[:, :9], progress=p),
    "compare layers": lambda X, at, p: bp.compare_layers({"all": X, "few": X[:, :9]}, n_folds=4, progress=p),
    "fit layers": _fit_layers,
    "report": _report,
}
OUTPUTS: dict[str, Callable[[Any, "Places", Callable[[Any], None]], Any]] = {
    "transform": lambda X, at, p: at.model.transform(X, out=at.out, progress=p),
    "ingest": lambda X, at, p: bp.ingest(X, at.out, chunk_rows=50, progress=p),
}
NAMES = (*ESTIMATORS, *QUESTIONS, *OUTPUTS)
for name in bp.__all__:
    getattr(bp, name)  # imported now, so that processes forked from one that imported this have it all


@dataclass(frozen=True)
class Work:
    """One thing to compute: of these chunks, straight from the store or through a general Dask graph."""

    name: str
    chunks: tuple[int, int]
    general: bool = False

    @property
    def shape_name(self) -> str:
        """Which of the stores is read."""
        return ESTIMATORS[self.name][0] if self.name in ESTIMATORS else "tall"

    @property
    def makes_output(self) -> bool:
        """Whether it writes a store of rows."""
        return self.name in OUTPUTS

    @property
    def takes_checkpoint(self) -> bool:
        """Whether a run may resume."""
        return self.name in ESTIMATORS or self.name == "fit layers"

    def store(self, folder: Path) -> Path:
        """Where the rows lie."""
        return folder / f"{self.shape_name}-{self.chunks[0]}x{self.chunks[1]}.zarr"


@dataclass(frozen=True)
class Places:
    """Where one run reads, logs its reads, and writes.

    Attributes
    ----------
    folder : Path
        Holds the stores and a fitted model.
    run : Path
        A folder of this run's own: the log of reads, checkpoint and output.
    checkpoint : bool
    slow : bool
        Whether reads take a while, so that kills land amid them.
    """

    folder: Path
    run: Path
    checkpoint: bool = False
    slow: bool = True

    @property
    def log(self) -> Path:
        """One line a read: first row, last row + 1."""
        return self.run / "reads"

    def unfinished(self) -> list[str]:
        """Return the files of this run that nobody writes any more, though they are not finished."""
        return [str(path) for path in self.run.rglob("*") if path.name.endswith((".lock", ".partial", ".tmp"))]

    @property
    def out(self) -> Path:
        """The store of rows that a run makes."""
        return self.run / "out.zarr"

    @property
    def model(self) -> Any:
        """A fitted PCA."""
        return bp.load(self.folder / "model.zarr")


@dataclass(frozen=True)
class LoggedRows(ZarrRows):
    """Rows of a Zarr array whose reads leave a line in ``log`` and take ``delay`` seconds more."""

    log: str
    delay: float

    def read_block(self, start: int, stop: int, columns: tuple[int, int]) -> np.ndarray:
        line = f"{start} {stop} {columns[0]} {columns[1]}\n".encode()
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)  # one write: lines of many processes never mix
        finally:
            os.close(descriptor)
        time.sleep(self.delay)
        return super().read_block(start, stop, columns)


def values_read(log: Path) -> int:
    """Count the values of all reads in a log."""
    total = 0
    for line in log.read_text().splitlines() if log.exists() else ():
        a, b, c, d = map(int, line.split())
        total += (b - a) * (d - c)
    return total


def prepare(folder: Path) -> None:
    """Write every store, with a decaying spectrum and three classes, and one fitted model."""
    for name, (n, d) in SHAPES.items():
        rng = np.random.default_rng(7)
        rows = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.7 + 6.0  # positive, as of counts
        rows[:, -1] += 0.1 * (np.arange(n) % 3)
        for chunks in CHUNKS[name]:
            store = zarr.create_array(
                folder / f"{name}-{chunks[0]}x{chunks[1]}.zarr", shape=(n, d), chunks=chunks, dtype="f4",
                config={"write_empty_chunks": True},
            )  # fmt: skip
            store[...] = rows.astype("f4")
    np.save(folder / "responses.npy", np.random.default_rng(8).standard_normal((SHAPES["tall"][0], 4)))
    small_groups()
    with dask.config.set(scheduler="sync"):
        path = folder / f"tall-{'x'.join(map(str, CHUNKS['tall'][0]))}.zarr"
        (folder / "tall.zarr").symlink_to(path)
        with bp.config(solve_threads=1):
            bp.PCA(4, solver="covariance").fit(bp.open(path)).save(folder / "model.zarr")
            bp.FisherDiscriminantAnalysis(2).fit(bp.open(path), np.arange(3200) % 3).save(folder / "classes.zarr")


def small_groups() -> None:
    """Cut small data as if it were large: about 50 groups, each a segment of its own."""
    layout.MIN_GROUP_BYTES, layout.MIN_GROUPS, side_by_side.PIECE_BYTES, sweeps.MIN_TILE = 256, 50, 256, 16


def open_logged(work: Work, places: Places) -> Any:
    """Open the rows of a run: reads of kernel sweeps, of which there are many, are delayed less."""
    store = work.store(places.folder)
    delay = (0.0005 if work.shape_name == "short" else 0.006) if places.slow else 0.0
    source = LoggedRows.of(ZarrReader(store), str(places.log), delay)
    if not work.general:
        return open_source(source)
    return da.from_array(source, chunks=work.chunks, asarray=False, meta=np.empty((0, 0), source.dtype)) * 2


def given(name: str, n: int, folder: Path) -> dict[str, Any]:
    """What a fit takes beside X: three classes, or a file of four responses: with an array, no worker is used."""
    argument, kind = GIVEN.get(name, ("", ""))
    return {argument: folder / "responses.npy" if kind == "responses" else np.arange(n) % 3} if argument else {}


def compute(work: Work, places: Places, progress: Callable[[Any], None]) -> tuple[str, int]:
    """Run it; return the digest of every bit of the result, and the rows that the result is of."""
    X = open_logged(work, places)
    if work.name in OUTPUTS:
        OUTPUTS[work.name](X, places, progress)
        return digest_of_output(places.out)
    with bp.config(solve_threads=1, workers_timeout=WORKERS_TIMEOUT):
        if work.name in QUESTIONS:
            return digest_of(QUESTIONS[work.name](X, places, progress)), len(X)
        model = ESTIMATORS[work.name][1]()
        checkpoint = {"checkpoint": places.run / "checkpoint"} if places.checkpoint else {}
        rows = lagged(X, range(4)) if work.name == "windows" else X
        model.fit(rows, progress=progress, **given(work.name, X.shape[0], places.folder), **checkpoint)
    return digest_of_model(model), int(getattr(model, "n_samples_", X.shape[0]))


@contextmanager
def telling(progress: Callable[[Any], None]) -> Iterator[None]:
    """Tell of the events of calls that take no ``progress``."""
    made = Run.__init__

    def told(run: Run, *given: Any, **options: Any) -> None:
        made(run, *given, **options)
        own = run.progress

        def both(event: Any) -> None:
            progress(event)
            own(event)

        run.progress = both

    Run.__init__ = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run.__init__ = made  # type: ignore[method-assign]


def digest_of(value: Any) -> str:
    """Digest of the numbers and texts of an answer."""
    text = hashlib.sha256()

    def add(one: Any) -> None:
        if is_dataclass(one):
            one = {field.name: getattr(one, field.name) for field in fields(one)}
        if isinstance(one, dict | list | tuple):
            for part in one.items() if isinstance(one, dict) else one:
                add(part)
        else:
            text.update(np.ascontiguousarray(one).tobytes() if isinstance(one, np.ndarray) else repr(one).encode())

    add(value)
    return text.hexdigest()


def digest_of_model(model: Any) -> str:
    """Digest of every array and value that a model would be saved with."""
    arrays, attributes = pack(model._result)
    text = hashlib.sha256(json.dumps(attributes, sort_keys=True, default=repr).encode())
    for name in sorted(arrays):
        text.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return text.hexdigest()


def digest_of_output(path: Path) -> tuple[str, int]:
    """Digest of a store's values, and its rows."""
    values = zarr.open_array(path, mode="r")[...]
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(), len(values)


def serve(work: Work, places: Places, address: str, pipe: Any) -> None:
    """Run as a process that may be killed: says through a pipe what happens, and at last how it ended."""
    with open(places.run / "stderr", "a") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it
    small_groups()
    passes = itertools.count()
    number = [0]

    def tell(event: Any) -> None:
        if isinstance(event, PassEvent):
            number[0] = next(passes)
            pipe.send(("pass", number[0], event.rows_total, event.groups_total, event.groups_resumed))
        elif isinstance(event, GroupEvent):
            pipe.send(("group", number[0], event.rows))
        elif isinstance(event, CheckpointEvent):
            pipe.send(("stored", number[0], event.segment))

    try:
        pipe.send(("began",))
        if not address:
            with dask.config.set(scheduler="threads", num_workers=2):
                result = compute(work, places, tell)
        else:
            with Client(address, timeout=10) as client:
                client.wait_for_workers(1, timeout=WORKERS_TIMEOUT)
                result = compute(work, places, tell)
        pipe.send(("done", *result))
    except KeyboardInterrupt:
        pipe.send(("interrupted",))
    except Exception as error:
        pipe.send(("error", type(error).__name__, str(error)[:400]))


def serve_scheduler(pipe: Any) -> None:
    """Run a scheduler in a process of its own until it is killed."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0", dashboard=False) as scheduler:
            pipe.send(scheduler.address)
            await scheduler.finished()

    asyncio.run(run())


class Cluster:
    """A scheduler process and nannies of two worker processes, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.context = get_mp_context()
        self.context.set_forkserver_preload(["bigpca", "distributed", "chaos_runs"])
        self.runner = LoopRunner()
        self.runner.start()
        self.folder, self.scheduler, self.nannies = folder, None, []
        self.address = ""

    def start(self) -> None:
        """Start what is not running."""
        if self.scheduler is not None and self.scheduler.is_alive():
            return
        self.stop()
        receiver, sender = self.context.Pipe(duplex=False)
        self.scheduler = self.context.Process(target=serve_scheduler, args=(sender,))
        self.scheduler.start()
        sender.close()
        if not receiver.poll(START_SECONDS):
            raise TimeoutError("the scheduler did not start")
        self.address = receiver.recv()
        self.nannies = self.runner.run_sync(self._start_nannies, callback_timeout=START_SECONDS)

    async def _start_nannies(self) -> list[Nanny]:
        options = {"nthreads": 1, "memory_limit": "1GiB", "dashboard": False, "host": "127.0.0.1"}
        silent = {"silence_logs": logging.CRITICAL, "local_directory": str(self.folder)}
        return list(await asyncio.gather(*(Nanny(self.address, **options, **silent) for _ in range(WORKERS))))

    def kill_worker(self, number: int) -> bool:
        """Kill one worker process; its nanny starts another."""
        pid = self.nannies[number].pid
        return pid is not None and self._kill(pid)

    def kill_scheduler(self) -> bool:
        """Kill the scheduler; the workers are of no use without it."""
        return self._kill(self.scheduler.pid)

    @staticmethod
    def _kill(pid: int) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        """End every process."""
        for nanny in self.nannies:
            if nanny.pid is not None:
                nanny.auto_restart = False
                self._kill(nanny.pid)
        if self.nannies:
            self.runner.run_sync(self._close_nannies, callback_timeout=START_SECONDS)
        self.nannies = []
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler.join(START_SECONDS)
            self.scheduler = None

    async def _close_nannies(self) -> None:
        await asyncio.gather(*(nanny.close(timeout=5) for nanny in self.nannies), return_exceptions=True)


def main() -> None:
    """Run one name once."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/chaos_runs.py NAME DIRECTORY", description=__doc__.split("\n")[0]
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    given.directory.mkdir(parents=True)
    prepare(given.directory)
    work = Work(given.name, CHUNKS[ESTIMATORS[given.name][0] if given.name in ESTIMATORS else "tall"][0])
    places = Places(given.directory, given.directory)
    began = time.perf_counter()
    found = compute(work, places, lambda event: None)
    read = values_read(places.log) / np.prod(SHAPES[work.shape_name])
    print(f"{found[0]} of {found[1]} rows, {read:.2f} reads, {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
