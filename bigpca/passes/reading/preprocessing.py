"""Preprocessing of single rows: records that users give to an estimator, each a row map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Real
from typing import ClassVar, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from bigpca.arrays import Array, Integers
from bigpca.data.sparse import with_values
from bigpca.errors import check_choice
from bigpca.passes.reading.blocks import Values
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import NumberedMap

SHOWN_ROWS = 5  # in messages


@dataclass(frozen=True)
class OnnxNode:
    """One operation of ONNX: its name, the names of what it reads and of its result, and its integer attributes."""

    operation: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OnnxForm:
    """A function of rows in ONNX: nodes from ``"rows"`` to ``"result"``, and their constants."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, float] = field(default_factory=dict)


class RowPreprocessor(NumberedMap):
    """A function of single rows that learns nothing and keeps their width: the argument of ``preprocess``."""

    @abstractmethod
    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return new rows (b, d), in their working dtype; ``numbers`` (b,) and ``where`` name them in messages.

        Rows with NaN or infinities keep them in the same places.
        """

    @property
    def keeps_csr(self) -> bool:
        """As :attr:`takes_csr`: the values that are not stored stay zero."""
        return self.takes_csr

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows in the working dtype, and the result."""
        return 2 * rows * d * itemsize, 0

    def describe(self) -> dict[str, object]:
        """Name and parameters."""
        return {"map": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]

    def sklearn_step(self) -> object:
        """Return the same function as a transformer of scikit-learn; it imports bigpca if there is none."""
        from sklearn.preprocessing import FunctionTransformer  # only exports need it

        return FunctionTransformer(partial(self.apply, where="X"), feature_names_out="one-to-one")

    def onnx_form(self) -> OnnxForm:
        """Return the same function as nodes of ONNX.

        Raises
        ------
        ValueError
            If it has no such form.
        """
        raise ValueError(f"preprocess = {self!r} has no form in ONNX; bp.rows.L2() or bp.rows.Power() was expected.")


Preprocess: TypeAlias = RowPreprocessor | Sequence[RowPreprocessor] | None


@dataclass(frozen=True)
class L2(RowPreprocessor):
    """Divides each row by its Euclidean norm: dot products of rows become cosines.

    Parameters
    ----------
    zero_rows : {"raise", "keep"}, default "raise"
        A row of zeros has no direction: it raises an error, or remains zero (as in scikit-learn's ``Normalizer``).

    Raises
    ------
    ValueError
        For rows of zeros, by number, with ``zero_rows="raise"``.

    Notes
    -----
    The usual first step for embeddings that are compared by cosine: Jégou & Chum (2012), "Negative evidences and
    co-occurrences in image retrieval: the benefit of PCA and whitening".

    Examples
    --------
    >>> L2().apply(np.array([[3.0, 4.0], [0.0, 2.0]]), "X").tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """

    # Yes: zeros stay zeros.
    takes_csr: ClassVar[bool] = True

    zero_rows: str = "raise"

    def __post_init__(self) -> None:
        check_choice("zero_rows", self.zero_rows, ("raise", "keep"))

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return rows of norm 1; division by the largest entry first keeps squares in range."""
        if isinstance(rows, csr_array):
            return self._sparse(rows, numbers, where)
        values = rows.astype(working_dtype(rows.dtype), copy=False)
        with np.errstate(invalid="ignore"):
            largest = np.maximum(values.max(axis=1, initial=0), -values.min(axis=1, initial=0))
            zero = largest == 0
            if self.zero_rows == "raise" and zero.any():
                raise ValueError(_zero_rows(numbers[zero], where))
            unit: Array = values / np.where(zero | ~np.isfinite(largest), 1, largest)[:, None]
            norms = np.sqrt(np.einsum("ij,ij->i", unit, unit))
        unit /= np.where(zero | ~np.isfinite(norms), 1, norms)[:, None]
        return unit

    def _sparse(self, rows: csr_array, numbers: Integers, where: str) -> csr_array:
        values = rows.data.astype(working_dtype(rows.dtype))
        line = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        with np.errstate(invalid="ignore"):
            largest = np.zeros(rows.shape[0], values.dtype)
            np.maximum.at(largest, line, np.abs(values))
            zero = largest == 0
            if self.zero_rows == "raise" and zero.any():
                raise ValueError(_zero_rows(numbers[zero], where))
            values /= np.where(zero | ~np.isfinite(largest), 1, largest)[line]
            squares = np.bincount(line, values.astype(np.float64) ** 2, rows.shape[0])
            norms = np.sqrt(squares).astype(values.dtype)
        values /= np.where(zero | ~np.isfinite(norms), 1, norms)[line]
        return with_values(rows, values)

    def sklearn_step(self) -> object:
        """Return a ``Normalizer``, which leaves rows of zeros zero."""
        from sklearn.preprocessing import Normalizer  # only exports need it

        return Normalizer()

    def onnx_form(self) -> OnnxForm:
        """Return one node, which leaves rows of zeros zero."""
        return OnnxForm((OnnxNode("LpNormalization", ("rows",), "result", {"axis": 1, "p": 2}),))


@dataclass(frozen=True)
class Power(RowPreprocessor):
    """Signed power of each value, ``sign(x) |x|^exponent``, which reduces the weight of large values.

    Parameters
    ----------
    exponent : float in (0, 1], default 0.5

    Notes
    -----
    Perronnin, Sánchez & Mensink (2010), "Improving the Fisher kernel for large-scale image classification". For
    non-negative rows, ``[Power(0.5), L2()]`` is the Hellinger map, known as RootSIFT (Arandjelović & Zisserman 2012,
    "Three things everyone should know to improve object retrieval").

    Examples
    --------
    >>> Power(0.5).apply(np.array([[4.0, -9.0]]), "X").tolist()
    [[2.0, -3.0]]
    """

    # Yes: powers of zeros are zeros.
    takes_csr: ClassVar[bool] = True

    exponent: float = 0.5

    def __post_init__(self) -> None:
        given: object = self.exponent
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeError(f"exponent = {given!r} is a {type(given).__name__}. Give a number in (0, 1], such as 0.5.")
        if not 0 < float(given) <= 1:
            raise ValueError(f"exponent = {given} is outside (0, 1]. Use 0.5 for the square root.")

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the powers; for sparse rows, those of the stored values."""
        return with_values(rows, self._powers(rows.data)) if isinstance(rows, csr_array) else self._powers(rows)

    def _powers(self, rows: Array) -> Array:
        values = rows.astype(working_dtype(rows.dtype), copy=False)
        powers = np.abs(values)
        if self.exponent == 0.5:
            np.sqrt(powers, out=powers)
        else:
            np.power(powers, self.exponent, out=powers)
        result: Array = np.copysign(powers, values, out=powers)
        return result

    def onnx_form(self) -> OnnxForm:
        """Return ``sign(x) |x|^exponent``."""
        nodes = (
            OnnxNode("Abs", ("rows",), "size"), OnnxNode("Pow", ("size", "exponent"), "power"),
            OnnxNode("Sign", ("rows",), "sign"), OnnxNode("Mul", ("sign", "power"), "result"),
        )  # fmt: skip
        return OnnxForm(nodes, {"exponent": self.exponent})


def preprocessors(preprocess: Preprocess) -> tuple[RowPreprocessor, ...]:
    """Return what is applied to each row, in order; nothing for None.

    Raises
    ------
    TypeError
        For anything else than records such as ``L2()``.

    Examples
    --------
    >>> preprocessors(None), preprocessors(L2()), preprocessors([Power(), L2("keep")])
    ((), (L2(zero_rows='raise'),), (Power(exponent=0.5), L2(zero_rows='keep')))
    """
    given: object = () if preprocess is None else preprocess
    found = (given,) if isinstance(given, RowPreprocessor) else given
    if not isinstance(found, list | tuple) or not all(isinstance(one, RowPreprocessor) for one in found):
        raise TypeError(
            f"preprocess = {preprocess!r} is not known; None, a record such as bp.rows.L2() or bp.rows.Power(0.5), or "
            f"a list of those was expected."
        )
    return tuple(found)


def _zero_rows(numbers: Integers, where: str) -> str:
    shown = ", ".join(map(str, numbers[:SHOWN_ROWS])) + (", ..." if len(numbers) > SHOWN_ROWS else "")
    return (
        f"L2() cannot normalise {len(numbers)} of the rows in {where}, which are zeros: {shown}. Rows with a direction "
        f'were expected. Use L2(zero_rows="keep") to leave them zero, or remove them.'
    )
