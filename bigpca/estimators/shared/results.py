"""The fitted numbers of an estimator: one frozen record, or in its place the solve that will return it.

What ends in an underscore in a record is an attribute of the fitted model: ``model.components_`` is
``record.components_``. Its fields are those of the file (:mod:`bigpca.records`); what follows from them is a property.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from functools import cache
from typing import ClassVar, Generic, Self, TypeVar, cast

from bigpca.arrays import Array
from bigpca.engine.driver import solving_with
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.base import WeightSums
from bigpca.passes.accumulators.folds import check_folds
from bigpca.records import size_of, stored
from bigpca.solvers.eigh import EPS

VARIANCES = (  # in a table of components
    ("eigenvalue", "eigenvalues_"),
    ("variance", "explained_variance_"),
    ("share", "explained_variance_ratio_"),
)


class Result:
    """The fitted numbers of an estimator, a frozen dataclass.

    An attribute that is None does not exist, except for those in ``none_is_known``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    none_is_known: ClassVar[frozenset[str]] = frozenset()

    @property
    def n_components_(self) -> int:
        """k, by the field that has this size; the attribute does not exist where none has it."""
        return cast("int", size_of(self, "k"))

    @property
    def width(self) -> int:
        """Columns of the output of ``transform``: that of the components, where there are such."""
        return self.n_components_

    @property
    def so_far(self) -> Unchecked:
        """The statistics of all rows, to which others are added: the result itself, where it holds them."""
        return self

    def attribute(self, name: str) -> object:
        """Return a fitted attribute; raises AttributeError if the record has none of that name."""
        value = getattr(self, name)
        if value is None and name not in self.none_is_known:
            raise AttributeError(name)
        return value

    @classmethod
    @cache
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


@dataclass(frozen=True)
class RowCounts(Result):
    """A result of rows that may have weights.

    Attributes
    ----------
    n_samples_, n_omitted_ : int
        Rows used, and rows omitted because of missing values.
    weight_sums : (float, float) or None
        Sums of the weights and of their squares; None for rows without weights.
    """

    n_samples_: int = stored(of=int, least=0)
    n_omitted_: int = stored(of=int, least=0)
    _: KW_ONLY
    weight_sums: WeightSums = stored(of=tuple, least=0, default=None)

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


Counted = TypeVar("Counted", bound=RowCounts)


@dataclass(frozen=True)
class KeptRows:
    """The statistics of all rows of a model.

    Attributes
    ----------
    state : Accumulator or None
        For each group, if there are groups; None if they are not kept.
    n_omitted_ : int
    roundings : tuple of float
        As of :class:`SummedRows`.
    apart : tuple of ndarray
        Added rows in memory that are not in the state yet.
    """

    state: Unchecked
    n_omitted_: int
    roundings: tuple[float, ...]
    apart: tuple[Array, ...] = ()

    @property
    def n_samples_(self) -> int:
        """Rows of the state, and apart from it."""
        return (0 if self.state is None else self.state.count) + sum(len(batch) for batch in self.apart)

    def of(self, state: Unchecked, omitted: int) -> Self:
        """Return the same after the read that found this state, and omitted so many rows."""
        return replace(self, state=state, n_omitted_=omitted)

    def merge(self, other: KeptRows) -> Self:
        """Return the statistics of both sets of rows."""
        roundings, state = tuple(map(max, self.roundings, other.roundings)), None
        if self.state is not None and other.state is not None:
            check_folds(self.state, other.state)
            state = self.state.merge(other.state)
        omitted, apart = self.n_omitted_ + other.n_omitted_, self.apart + other.apart
        return replace(self, state=state, n_omitted_=omitted, roundings=roundings, apart=apart)


@dataclass(frozen=True)
class SummedRows(RowCounts):
    """A result of rows that were summed.

    Attributes
    ----------
    state : Accumulator or None
        Sufficient statistics, for ``partial_fit`` and ``merge``; for each group, if there are groups; None if they are
        not kept.
    roundings : tuple of float
        Relative rounding of the stored values, of rows and of covariates: what it changes in later solves is told.
    """

    _: KW_ONLY
    state: Unchecked = stored(default=None)
    roundings: tuple[float, ...] = stored(of=tuple, least=0, default=(EPS,))

    def checked(self) -> Self:
        """Return itself; raises ValueError for statistics of other rows."""
        return checked_count(self)

    @property
    def so_far(self) -> KeptRows:
        """The statistics, with what solves of more rows need beside them."""
        return KeptRows(self.state, self.n_omitted_, self.roundings)


def checked_count(found: Counted) -> Counted:
    """Return a result, unless it says another number of rows than its statistics."""
    state = getattr(found, "state", None)
    if state is not None and state.count != found.n_samples_:
        raise ValueError(f"it has n_samples = {found.n_samples_} other than those of its state")
    return found


@dataclass(frozen=True)
class Traits:
    """What a class declares of its fits: all that only some classes have is asked here.

    Attributes
    ----------
    result : type of Result
        Of a fit.
    prefix : str
        Of the names of components.
    accepts : frozenset of {"groups", "labels", "labels beside rows", "mean", "pairwise", "em", "scores of y"}
        What fits take beside rows: groups as folds, labels (which are then required; also with the rows of batches),
        and rows with missing values, by the name of the ``nan_policy``; and whether ``transform`` takes y too.
    unweighted : str
        Why fits cannot use weights, where they cannot.
    min_rows : int
        That a fit requires.
    output : str
        Of ``transform``, in the names of tasks and in messages.
    summary : tuple of (str, str)
        Columns of ``summary()``, and the attributes that some models have.
    core : str
        The attribute with the model whose components these are, if not this one.
    alike : tuple of str
        Parameters in which models must agree to be merged.
    ranges : mapping of str to Parameter
        Of parameters that may be something else here, or act at another time.
    """

    result: type[Result]
    prefix: str
    accepts: frozenset[str] = frozenset()
    unweighted: str = ""
    min_rows: int = 2
    output: str = "scores"
    summary: tuple[tuple[str, str], ...] = VARIANCES
    core: str = ""
    alike: tuple[str, ...] = ("preprocess",)
    ranges: Mapping[str, Parameter] = field(default_factory=dict)


Found = TypeVar("Found")


@dataclass(eq=False)
class Waiting(Generic[Found]):
    """The solve of a model to which rows were added, in the place of its record: it runs once, when that is needed.

    Copies of the model share it. It is pickled as the record.

    Attributes
    ----------
    solve : callable
        Computes the record from the statistics, by the parameters when the rows were added.
    kept : KeptRows, or other statistics
        Of all rows, to which others are added.
    threads : int or None
        ``solve_threads``.
    """

    solve: Callable[[], Found] | None
    kept: Unchecked
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


def unsolved() -> Unchecked:
    """Raise AttributeError, in the place of a solve: what only shows a model makes none."""
    raise AttributeError("rows were added since the last solve")
