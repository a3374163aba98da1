"""The fitted numbers of an estimator: one frozen record, or in its place the solve that will return it.

What ends in an underscore in a record is an attribute of the fitted model: ``model.components_`` is
``record.components_``. Its fields are those of the file (:mod:`bigpca.records`); what follows from them is a property.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import ClassVar, Generic, Protocol, TypeVar

from bigpca.estimators.shared.inputs import Input
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.engine.driver import solving_with


class Result:
    """The fitted numbers of an estimator, a frozen dataclass.

    An attribute that is None does not exist, except for those in ``none_is_known``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    none_is_known: ClassVar[frozenset[str]] = frozenset()

    def attribute(self, name: str) -> object:
        """Return a fitted attribute; raises AttributeError if the record has none of that name."""
        value = getattr(self, name)
        if value is None and name not in self.none_is_known:
            raise AttributeError(name)
        return value

    @classmethod
    def names(cls) -> frozenset[str]:
        """Names of the attributes that records of the class may have."""
        return frozenset(name for name in (*cls.__dataclass_fields__, *dir(cls)) if name[-1] == "_" != name[0])

    @property
    def attributes(self) -> list[str]:
        """Names of the attributes that there are."""
        return [name for name in self.names() if name in self.none_is_known or getattr(self, name) is not None]

    def __getstate__(self) -> dict[str, object]:
        """Return the fields, without properties that were computed."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


class RowCounts(Result):
    """A result of rows that may have weights."""

    n_samples_: int
    n_omitted_: int
    weight_sums: WeightSums

    @property
    def sum_weights_(self) -> float:
        """``sum_t w_t``; the number of rows without weights."""
        return float(self.n_samples_) if self.weight_sums is None else self.weight_sums[0]

    @property
    def n_effective_(self) -> float:
        """Kish's effective number of rows, ``(sum w)^2 / sum w^2``."""
        if self.weight_sums is None:
            return float(self.n_samples_)
        total, squares = self.weight_sums
        return total**2 / squares if squares else 0.0


class Kept(Protocol):
    """Statistics of all rows of a model, to which others are added."""

    @property
    def n_samples_(self) -> int: ...
    @property
    def n_omitted_(self) -> int: ...


Found = TypeVar("Found")


@dataclass(eq=False)
class Waiting(Generic[Found]):
    """The solve of a model to which rows were added, in the place of its record: it runs once, when that is needed.

    Copies of the model share it. It is pickled as the record.

    Attributes
    ----------
    solve : callable
        Computes the record from the statistics, by the parameters when the rows were added.
    kept : Kept
        The statistics.
    threads : int or None
        ``solve_threads``.
    """

    solve: Callable[[], Found] | None
    kept: Kept
    threads: int | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    found: Found | None = None

    def __call__(self) -> Found:
        """Return the record; a solve that fails raises each time, and threads that ask at once share one."""
        with self.lock, solving_with(self.threads):
            if self.solve is not None:
                self.found, self.solve = self.solve(), None
        return self.found  # type: ignore[return-value]  # it was solved

    def __reduce__(self) -> tuple[Callable[[Found], Found], tuple[Found]]:
        return _itself, (self(),)


def _itself(found: Found) -> Found:
    return found


def unsolved() -> Input:
    """Raise AttributeError, in the place of a solve: what only shows a model makes none."""
    raise AttributeError("rows were added since the last solve")
