"""The graph of one segment, and the tasks that store segments' states in a checkpoint that workers can write.

Release every task that a piece of work has on the scheduler when the work ends, wherever it was interrupted. The
result of a future, or an error that a user can act on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any, TypeVar

from dask.task_spec import GraphNode, Task, TaskRef
from dask.tokenize import normalize_token
from dask.typing import Key
from distributed import Client, Future, KilledWorker

from bigpca.engine.checkpoint import SegmentStates
from bigpca.engine.group import SHARED, RunCancelled
from bigpca.engine.jobs import AnyPass, Finish, PassState, fold_group, merge_states, tree
from bigpca.engine.local import workers_of

T = TypeVar("T")


def store_segment(files: SegmentStates, segment: int, state: PassState) -> int:
    """Write the final state of a segment, in the task that computed it, and return its number."""
    files.write("segment", segment, state)
    return segment


def extend_prefix(files: SegmentStates, covered: int, stop: int) -> int:
    """Fold stored segments ``covered:stop`` into the stored prefix, in a task; return ``stop``."""
    total = files.read("prefix", covered) if covered else None
    for segment in range(covered, stop):
        state = files.read("segment", segment)
        total = state if total is None else merge_states(total, state)
    if total is not None:
        files.write("prefix", stop, total)
    return stop


def finish_stored(finish: Finish[T], files: SegmentStates, covered: int) -> T:
    """Apply ``finish`` to the stored prefix, in a task."""
    return finish(files.read("prefix", covered))


def identity(value: T) -> T:
    """Return the value: a task that holds the input of other tasks."""
    return value


def group_task(job: AnyPass, group: int, key: str, shared_input: Future | None) -> Task:
    """Return the task that folds one group; ``shared_input`` is the future of the broadcast values, or None."""
    task, inputs = job.cut(group)
    if shared_input is not None:
        inputs = {**inputs, SHARED: shared_input}
    return Task(key, fold_group, task, job.run_id, tuple(inputs), *inputs.values())


class SegmentGraph(dict[Key, GraphNode]):
    """A graph that is named, so that Dask need not name it by the contents of its tasks.

    That is four fifths of what the client would spend on a group.
    """

    name = ""

    def __reduce__(self) -> tuple[type[dict[Key, GraphNode]], tuple[dict[Key, GraphNode]]]:
        return dict, (dict(self),)


normalize_token.register(SegmentGraph, lambda graph: graph.name)


def segment_graph(
    job: AnyPass,
    index: int,
    attempt: int,
    shared: Sequence[Future | None],
    files: SegmentStates | None,
    done: Mapping[int, Future],
) -> tuple[SegmentGraph, str]:
    """Cut the groups of a segment and return its graph and the key of its result.

    Parameters
    ----------
    attempt : int
        How often this segment was submitted before: a new attempt has new keys, for which no deaths are counted yet.
    shared : sequence of Future or None
        The copy of the broadcast values for each group.
    files : SegmentStates or None
        Where the segment's last task writes the state; None if the state is the result.
    done : dict of int to Future
        Groups whose states exist already.
    """
    again = ("try", attempt) if attempt else ()
    graph = SegmentGraph()
    leaves: list[str] = []
    for group, shared_input in zip(job.layout.segments[index], shared, strict=True):
        key = "-".join(map(str, (job.prefix, group, *again)))
        if group in done:
            graph[key] = Task(key, identity, done[group])
        else:
            graph[key] = group_task(job, group, key, shared_input)
        leaves.append(key)
    # Four states that are merged, three results, and those that wait here: within what a fold holds, and 7 states.
    width = 4 if 5 * job.state_bytes <= job.cost.peak_bytes else 2
    root = tree(graph, leaves, job.key("merge", index, *again), width=width)
    if files is not None:
        name = job.key("store", index, *again)
        graph[name] = Task(name, partial(store_segment, files, index), TaskRef(root))
        root = name
    graph.name = root
    return graph, root


def group_of(prefix: str, key: Key) -> int | None:
    """Return the group that a task of this pass folds, or None for other tasks.

    >>> keys = [f"bigpca-moments-{end}" for end in ("1f-7", "1f-7-try-2", "1f-merge-7-0-0", "2f-7")]
    >>> [group_of("bigpca-moments-1f", key) for key in keys]
    [7, 7, None, None]
    """
    first = str(key).removeprefix(f"{prefix}-").partition("-")[0]
    return int(first) if first.isdigit() else None


def releasing(client: Client, owns: Callable[[Key], bool], work: Callable[[], T]) -> T:
    """Return ``work()``, and release all tasks whose keys the work owns, whether it returns, raises or is interrupted.

    An interrupt may come between the submission of a task and the record of its future, and while tasks are released.
    The first is why tasks are found by their keys: the client notes each before it submits it, whereas the futures may
    live on in the frames of a traceback, which IPython keeps. The second is why they are released twice.

    Parameters
    ----------
    owns : callable
        Key -> whether it is of this work alone.
    """
    try:
        try:
            return work()
        finally:
            _release(client, owns)
    except BaseException:
        _release(client, owns)
        raise


def _release(client: Client, owns: Callable[[Key], bool]) -> None:
    """Release tasks as their last future would, which may exist."""

    async def release() -> None:  # in the thread of the client's events, after the messages of all submissions
        for key in filter(owns, list(client.futures)):
            client._release_key(key)

    with contextlib.suppress(Exception):  # without a connection the scheduler has released them itself
        client.sync(release)


def starts_with(prefix: str) -> Callable[[Key], bool]:
    """Return whether keys are names that begin with ``prefix``."""
    return lambda key: isinstance(key, str) and key.startswith(prefix)


GATHER_SECONDS = 5.0


def begun(client: Client, call: Callable[[], Awaitable[T]]) -> futures.Future[T]:
    """Begin an asynchronous call of a client, such as the transfer of a result."""

    async def result() -> T:
        return await call()

    return asyncio.run_coroutine_threadsafe(result(), client.loop.asyncio_loop)


def result_of(arrived: futures.Future[Any], client: Client) -> Any:
    """Return a result that was transferred; raise :class:`RunCancelled` for that of a cancelled future."""
    try:
        return arrived.result()
    except (RunCancelled, KilledWorker):
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC and error.strerror == os.strerror(errno.ENOSPC):  # not raised by this package
            raise _spill_disk_full(client) from error
        raise
    except Exception as error:
        if type(error).__name__ in ("CancelledError", "FutureCancelledError", "FuturesCancelledError"):
            raise RunCancelled(str(error)) from error
        raise


def awaited(client: Client, call: Callable[[], Awaitable[T]], check: Callable[[], None], seconds: float) -> T:
    """Return the result of an asynchronous call of a client, and call ``check`` every few ``seconds`` meanwhile.

    An interrupt ends the wait and not the call, unlike in ``Client.sync``: a gather that is cancelled before its first
    step makes every later gather of the client fail.
    """
    pending = begun(client, call)
    while True:
        try:
            return pending.result(timeout=seconds)
        except TimeoutError:
            if pending.done():  # it is the call's own, or the call ended just now
                return pending.result()
        try:
            check()
        except Exception:
            pending.cancel()
            raise


def _spill_disk_full(client: Client) -> OSError:
    places = ", ".join(sorted({str(worker["local_directory"]) for worker in workers_of(client).values()})[:3])
    return OSError(
        errno.ENOSPC,
        f"the disk to which workers spill chunks that do not fit in their memory is full ({places}). Free space, start "
        "workers with --local-directory on a larger disk or with more memory, or do not persist the input: it is read "
        "chunk by chunk",
    )
