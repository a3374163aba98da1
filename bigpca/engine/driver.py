"""Drive one pass: load what a checkpoint holds, run the rest here or on a cluster, and report.

Small graphs that are computed before a pass run in the same place, with the same limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import dask.threaded
from dask.core import flatten

from bigpca.blas import blas_threads, during, solve_paused
from bigpca.engine.checkpoint import Checkpoint, Resumed, WriteFailed, check_stamps, warn_unwritten
from bigpca.engine.events import DoneEvent, PassEvent, SkipEvent
from bigpca.engine.group import cancel_run
from bigpca.engine.jobs import Finish, Pass, PassState
from bigpca.engine.local import (
    chosen_scheduler,
    current_client,
    run_in_order,
    run_locally,
    threads_here,
)
from bigpca.engine.run import Run
from bigpca.errors import ShortTraceback
from bigpca.settings import brought_by, setting, steady_heap, trim_heap

if TYPE_CHECKING:
    from distributed import Client

    from bigpca.engine.cluster.watch import Watch

# They are set in one place, the public method, and need not be passed on to what it calls. The bits therefore depend on
# ``solve_threads`` (or the number of cores), and not on the environment in which the process was started.
P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M")
_solve_threads: ContextVar[int | None] = ContextVar("bigpca_solve_threads", default=None)


POLL_SECONDS = 0.5  # between looks at a cluster that computes a small graph
OPENING = ("member", "sample_dims", "pattern", "columns", "keys", "missing_chunks", "fill")  # parameters of bp.open


@contextmanager
def solving_with(solve_threads: int | None) -> Iterator[None]:
    """Run the body with ``solve_threads`` BLAS threads (None: one per core here); its passes use one thread."""
    with during(_solve_threads, solve_threads), blas_threads(threads_here(solve_threads)):
        yield


def solving(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Decorate a public method to compute by the settings that its object brings, and to raise short tracebacks.

    Parameters of the constructor that are passed to the method are reported as such.
    """
    known = signature(method).parameters
    any_name = any(one.kind is Parameter.VAR_KEYWORD for one in known.values())

    @wraps(method)
    def run(self: M, *arguments: P.args, **options: P.kwargs) -> R:
        for name in () if any_name else options.keys() - known:
            from difflib import get_close_matches  # for messages only

            own, near = type(self).__name__, get_close_matches(name, known, 1)
            remedy = f". Did you mean {near[0]}?" if near else f"; it has {', '.join(list(known)[1:])}."
            if name in signature(type(self)).parameters:
                remedy = f", which belongs to the constructor: {own}({name}={options[name]!r}).{method.__name__}(...)."
            elif name in OPENING:
                remedy = f", which belongs to bp.open: {method.__name__}(bp.open(X, {name}={options[name]!r}))."
            raise TypeError(f"{method.__name__} has no argument {name!r}{remedy}")
        with brought_by(self), solving_with(setting(self, "solve_threads")), ShortTraceback():
            return method(self, *arguments, **options)

    return cast("Callable[Concatenate[M, P], R]", run)


@dataclass(frozen=True)
class WithCounts(Generic[R]):
    """Returns the result of ``finish``, and the state without its accumulators: the counts of its rows.

    Picklable, and bound to the ``solve_threads`` of the context in which it is made, wherever it will run.
    """

    finish: Finish[R]
    solve_threads: int | None = field(default_factory=_solve_threads.get)

    def __call__(self, state: PassState) -> tuple[R, PassState]:
        with solving_with(self.solve_threads):
            return self.finish(state), replace(state, parts={}, stamps={})


def run_pass(job: Pass[R], run: Run) -> R:
    """Run one pass and return the result of ``job.finish``.

    Raises
    ------
    UndeclaredPassError
        If the plan of the run has no such pass.
    CheckpointError
        If the input of finished groups has changed.
    ValueError
        If a Dask array has other values than at an earlier read of the run.
    TimeoutError, ConnectionError
        On a cluster: no worker for ``workers_timeout``, or the scheduler is lost.
    """
    began = time.perf_counter()
    steady_heap()
    run.admit(job.cost, job.state_bytes)
    run.number += 1
    resumed = Resumed()
    if run.checkpoint is not None:
        resumed = _resume(job, run.checkpoint, run)
    layout, evaluations, groups_resumed = job.cost.layout, 0, 0
    for index, segment in enumerate(layout.segments):
        groups_resumed += len(segment) * (index < resumed.covered or index in resumed.segments)
    if job.evaluations is not None:
        evaluations = sum(map(job.evaluations, range(len(layout.groups))))
    totals = (layout.n_rows, int(layout.decoded_rows * job.unit_bytes), len(layout.groups), groups_resumed, evaluations)
    run.progress(PassEvent(job.cost.name, *((0, 0, 0, groups_resumed, 0) if job.open_ended else totals)))
    counted: Pass[tuple[R, PassState]] = replace(cast("Pass[tuple[R, PassState]]", job), finish=WithCounts(job.finish))
    with solve_paused(), ShortTraceback():
        client = None if run.scheduler == "local" else current_client()
        try:
            if job.has_row is not None:
                result, counts = run_in_order(counted, run, resumed)
            elif client is None:
                result, counts = run_locally(counted, run, resumed)
            else:
                from bigpca.engine.cluster.run import run_on_cluster  # imports distributed, which is slow

                result, counts = run_on_cluster(client, counted, run, resumed)
            if resumed.files is not None:
                resumed.files.place.sweep()  # of workers that were killed while writing
        finally:
            cancel_run(job.run_id)
            trim_heap()
    run.compare_first(counts.first)
    run.reads += job.cost.reads
    run.evaluations += round(evaluations * (counts.rows / layout.n_rows if job.open_ended else 1))
    run.progress(DoneEvent(job.cost.name, time.perf_counter() - began))
    return result


def _resume(job: Pass[R], checkpoint: Checkpoint, run: Run) -> Resumed:
    """Return what an earlier run finished of this pass, after checking that its input is unchanged."""
    try:
        files = checkpoint.files(run.number, job.templates, job.layout, job.input)
    except OSError as error:
        warn_unwritten(WriteFailed(f"{type(error).__name__}: {error}"), checkpoint.path)
        return Resumed()
    resumed = checkpoint.finished(files, job.layout.segments)
    stored = dict(resumed.prefix.stamps) if resumed.prefix is not None else {}
    for index in resumed.segments:
        stored |= files.read("segment", index).stamps
    if job.has_row is not None and resumed.prefix is not None:
        run.progress(SkipEvent(resumed.prefix.rows))
    if job.stamp is not None:
        check_stamps(stored, {g: job.stamp(g) for g in stored}, job.layout.rows_of, checkpoint.path)
    return resumed


def get_watched(
    graph: object, keys: object, paths: Mapping[str, str], client: Client | None = None, **options: object
) -> Any:
    """Compute ``keys`` of a graph on the scheduler that Dask would use; on a client, under :class:`Watch`.

    Parameters
    ----------
    paths : mapping of str to {"reads"}
        What the graph reads: workers are checked first, as before a pass.
    client : distributed.Client or None, default None
        Where it is computed; by default where Dask would, which is here if this is the configuration's scheduler.

    Raises
    ------
    TimeoutError, ConnectionError, FileNotFoundError
        On a cluster: no worker for ``workers_timeout`` seconds, a lost scheduler, or workers that lack software or
        files.
    """
    with solve_paused():
        client = client or current_client()
        if client is None:
            get = chosen_scheduler() or dask.threaded.get
            return get(graph, keys, **options)
        from bigpca.engine.cluster.tasks import releasing
        from bigpca.engine.cluster.watch import Watch, join_workers, scheduler_loss_named

        watch = Watch(client, Run(), lambda workers: join_workers(client, workers, paths, 0))
        with scheduler_loss_named(watch):
            watch.wait_for_workers()
            theirs = client.futures.keys() & set(flatten([keys]))  # results that the caller persisted
            own = set(flatten([keys])) - theirs
            return releasing(client, own.__contains__, partial(_gather, watch, graph, keys, options))


def _gather(watch: Watch, graph: Any, keys: Any, options: dict[str, Any]) -> Any:
    from distributed import wait  # slow to import, so only if there is a client

    from bigpca.engine.cluster.tasks import GATHER_SECONDS, awaited

    futures = watch.client.get(graph, keys, sync=False, **options)
    while True:
        try:
            wait(futures, timeout=POLL_SECONDS)
            break
        except TimeoutError:
            watch.check()
            watch.warn_of_silent([future.key for future in flatten([futures])])
    return awaited(watch.client, partial(watch.client.gather, futures), watch.check, GATHER_SECONDS)
