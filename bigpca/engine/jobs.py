"""One pass described as data, the functions that its tasks run on any scheduler, and the state that they make.

Groups become states, a fixed tree merges the states of a segment, and a left fold merges the segments; so the bits do
not depend on the scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from secrets import token_hex
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from dask.task_spec import GraphNode, Task, TaskRef
from dask.typing import Key

from bigpca.arrays import Array, named
from bigpca.blas import during, one_blas_thread
from bigpca.engine.events import GroupEvent
from bigpca.engine.interfaces import Inputs, RowSource, State, notes
from bigpca.engine.planning import Layout, PassCost
from bigpca.settings import steady_heap

A = TypeVar("A", bound=State)


@dataclass(frozen=True)
class PassState:
    """Closed states over a range of groups.

    Attributes
    ----------
    parts : dict of str to State
    rows : int
        Rows folded.
    omitted : int
        Rows omitted because of NaN or infinite values.
    stamps : dict of int to str
        For each group, a digest of (key, size, mtime) of the files it read.
    first : dict of str to str
        Digests of the first rows of Dask arrays, by name: the same at every read, unless their values change.
    """

    parts: Mapping[str, State]
    rows: int
    omitted: int
    stamps: dict[int, str]
    first: dict[str, str] = field(default_factory=dict)

    def __sizeof__(self) -> int:
        """Return the bytes of its arrays, from which Dask decides on which worker two states are merged."""
        return sum(array.nbytes for part in self.parts.values() for array in part.to_arrays().values())

    def here(self) -> PassState:
        """Return the state in the host's memory."""
        return replace(self, parts={name: part.here() for name, part in self.parts.items()})

    def part(self, name: str, kind: type[A]) -> A:
        """Return one state, in the host's memory.

        Raises
        ------
        TypeError
            If it is of another kind.
        """
        found = self.parts[name]
        if not isinstance(found, kind):
            raise TypeError(f"the state holds {name} as {type(found).__name__}; {kind.__name__} was expected")
        return found.here()

    def merge(self, other: PassState) -> PassState:
        """Return the state of both ranges of groups, changing neither."""
        parts = {name: part.joined(other.parts[name]) for name, part in self.parts.items()}
        return PassState(
            parts,
            self.rows + other.rows,
            self.omitted + other.omitted,
            self.stamps | other.stamps,
            self.first | other.first,
        )

    def to_arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, without object arrays."""
        arrays = {f"{name}.{key}": a for name, part in self.parts.items() for key, a in part.to_arrays().items()}
        record = {"rows": self.rows, "omitted": self.omitted, "stamps": self.stamps}
        record["first"] = self.first
        return arrays | {"record": np.frombuffer(json.dumps(record).encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, templates: Mapping[str, State], arrays: Mapping[str, Array]) -> PassState:
        """Return the state that :meth:`to_arrays` wrote."""
        record = json.loads(bytes(arrays["record"]).decode())
        parts = {name: template.with_arrays(named(arrays, f"{name}.")) for name, template in templates.items()}
        stamps = {int(k): v for k, v in record["stamps"].items()}
        return cls(parts, record["rows"], record["omitted"], stamps, record["first"])


R = TypeVar("R")
Finish = Callable[[PassState], R]


class GroupTask(Protocol):
    """The rows of one group and how they are folded into one state; picklable."""

    @property
    def reader(self) -> RowSource[Any]:
        """The source of the rows, which also names them in errors."""

    def run(self, run_id: str, inputs: Inputs) -> PassState:
        """Fold the group. ``inputs`` are the values of persisted chunks, and the broadcast values."""


@dataclass(frozen=True, kw_only=True)
class Pass(Generic[R]):
    """One read of X, ready to run.

    Attributes
    ----------
    cost : PassCost
        Name, layout and planned cost.
    templates : dict of str to State
    cut : callable
        Group number -> (GroupTask, futures it depends on); called when the group is submitted.
    stamp : callable
        Group number -> digest of the files it reads.
    finish : callable
        Picklable; complete state -> result. Runs where the state is.
    shared : dict of str to object
        Broadcast values: one copy on each worker that folds groups, in each task as ``inputs[SHARED]``.
    evaluations : callable or None
        Group number -> number of kernel evaluations.
    unit_bytes : float
        Stored bytes of one row (of one column, if columns are read).
    input : dict
        Identifies view, maps and weights of the rows in checkpoints; empty if there are none.
    whole : int
        Rows of X (columns, if columns are read) that one read decodes.
    paths : dict of str to {"reads", "writes"}
        Files and directories that the tasks use, and how; workers must be able to access them.
    run_id : str
        Names this run's tasks and files; unique to each run.
    has_row : callable or None
        For rows that come in batches, which the fitting process reads in order for its tasks: row number -> whether
        there is such a row. None for rows that tasks read, in any order.
    open_ended : bool
        Whether the number of rows is found by the read; the layout then has room for more.
    alone : bool
        Whether one thread both reads rows that come in one order and folds them.
    follows : bool
        Whether the first read of a group begins while the group before it is folded, as object stores answer late.
    """

    cost: PassCost
    templates: Mapping[str, State]
    cut: Callable[[int], tuple[GroupTask, Inputs]]
    stamp: Callable[[int], str] | None
    finish: Finish[R]
    shared: Mapping[str, object] = field(default_factory=dict)
    evaluations: Callable[[int], int] | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    run_id: str = field(default_factory=partial(token_hex, 6))
    unit_bytes: float
    whole: int
    input: Mapping[str, object] = field(default_factory=dict)
    has_row: Callable[[int], bool] | None = None
    open_ended: bool = False
    follows: bool = False
    alone: bool = False

    @property
    def layout(self) -> Layout:
        """How the rows are cut."""
        return self.cost.layout

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        return sum(a.state_bytes for a in self.templates.values())

    @cached_property
    def prefix(self) -> str:
        """Start of the keys of this pass's tasks; a number follows in those that fold groups."""
        return f"bigpca-{self.cost.name}-{self.run_id}"

    def key(self, what: str, *numbers: object) -> str:
        """Return the key of another task of this pass.

        NOTE: Dask derives the name of a task group from the part before the run's id. Groups under a name of their own,
        with few copies of the broadcast values under another, would be "root-ish" to Dask: placed wherever a worker is
        free, instead of where their copy is.
        """
        return "-".join([self.prefix, what, *map(str, numbers)])

    def done_event(self, groups: range) -> GroupEvent:
        """Return the event that reports consecutive groups as done, with the stored bytes that are decoded for them."""
        sizes = self.layout.sizes[groups.start : groups.stop]
        evaluations = 0 if self.evaluations is None else sum(map(self.evaluations, groups))
        return GroupEvent(
            sum(count for count, _ in sizes), int(sum(decoded for _, decoded in sizes) * self.unit_bytes), evaluations
        )


AnyPass: TypeAlias = Pass[Any]  # with a result of any type, for the engine, which only passes results on


def fold_group(task: GroupTask, run_id: str, keys: tuple[Key, ...], *values: object) -> PassState:
    """Fold one group; ``keys`` and ``values`` are its inputs."""
    steady_heap()
    return run_group(task, run_id, dict(zip(keys, values, strict=True))).here()  # others merge it


def run_group(task: GroupTask, run_id: str, inputs: Inputs) -> PassState:
    """Fold one group, with digests of the first rows of arrays that were read, also by threads in its context."""
    with during(notes, first := dict[str, str]()):
        return replace(task.run(run_id, inputs), first=first)


def merge_states(*states: PassState) -> PassState:
    """Merge adjacent states in a binary tree, with one BLAS thread, like folds."""
    with one_blas_thread():
        while len(states) > 1:
            rest = states[len(states) // 2 * 2 :]
            states = (*(left.merge(right) for left, right in zip(states[::2], states[1::2], strict=False)), *rest)
        return states[0]


Merge: TypeAlias = Callable[..., PassState]


def tree(graph: dict[Key, GraphNode], leaves: list[str], key: str, merge: Merge = merge_states, width: int = 2) -> str:
    """Add a fixed binary tree of merges over ``leaves`` to ``graph``, its keys prefixed by ``key``; return the root.

    A task merges ``width`` states, a power of two: the tree is the same, with fewer tasks.
    """
    level = 0
    while len(leaves) > 1:
        merged = []
        for i in range(0, len(leaves), width):
            some, name = leaves[i : i + width], f"{key}-{level}-{i}"
            if len(some) > 1:
                graph[name] = Task(name, merge, *map(TaskRef, some))
            merged.append(name if len(some) > 1 else some[0])
        leaves = merged
        level += 1
    return leaves[0]
