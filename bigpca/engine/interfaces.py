"""What the engine requires of others, in small protocols. It never looks inside a block, and knows no kind of rows.

What a kind of rows needs, its source, its steps or its states do: a shift, weights, rows that do not count, an array
library on a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from dask.typing import Key

from bigpca.arrays import Array

V_co = TypeVar("V_co", covariant=True)
Inputs: TypeAlias = Mapping[Key, Any]  # by key: values of Dask nodes or their futures, broadcast values


class RowSource(Protocol[V_co]):
    """The rows of one group by their numbers in the whole, as a task reads them: a small picklable record.

    Shape, dtype and chunks are what :func:`bigpca.engine.layout.plan_layout` is given; the stamp of a group, a digest
    of the files that hold its rows, is :attr:`bigpca.engine.jobs.Pass.stamp`.
    """

    @property
    def owned(self) -> bool:
        """Whether what it returns may be overwritten."""

    def read(self, start: int, stop: int) -> V_co:
        """Return rows ``start:stop``. They may be of any kind that steps take."""

    def slabs(self, rows: Any, first: int, ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, Any]]:
        """Yield (first row, rows) of the slabs in these ranges, of what was read from row ``first`` on."""

    def where(self, start: int, stop: int) -> str:
        """Name those rows in an error."""

    def with_inputs(self, inputs: Inputs) -> Self:
        """Return the source with what its task was given: values of Dask nodes, and broadcast values."""


class State(Protocol):
    """What groups are folded into: small, mergeable, and stored as its arrays."""

    @property
    def state_bytes(self) -> int:
        """Bytes of its arrays."""

    def joined(self, other: Self) -> Self:
        """Return the state of both ranges of rows, changing neither; associative to rounding."""

    def here(self) -> Self:
        """Return the state in the host's memory, to be stored or sent to another process."""

    def bare(self) -> Self:
        """Return an empty one without what only folding needs."""

    def describe(self) -> dict[str, object]:
        """Return what identifies its computation in checkpoints."""

    def to_arrays(self) -> dict[str, Array]:
        """Return it as named arrays."""

    def with_arrays(self, arrays: Mapping[str, Array]) -> Self:
        """Return the state whose :meth:`to_arrays` returned ``arrays``."""


# Digests of the first rows of arrays that are read in a task.
notes: ContextVar[dict[str, str] | None] = ContextVar("bigpca-notes", default=None)
