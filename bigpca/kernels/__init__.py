"""Kernels: similarities k(x, y) of two rows, and the algebra that combines them.

- ``base``       the interface, evaluated block by block, with diagonal, cost and limits; sums and products of kernels
- ``dot``        functions of the dot product: linear, polynomial, tanh, cosine; and the products that kernels share
- ``distance``   RBF and Laplacian
- ``histogram``  sums over columns of a term of two numbers, compiled, without a temporary per pair
- ``string``     common substrings, and common subsequences by a compiled dynamic programme
- ``loops``      what ``distance``, ``histogram`` and ``string`` have compiled
- ``custom``     what the caller brings: a precomputed matrix, a Python function of two blocks of rows, or a model,
  whose parameters a row would change (Fisher)
- ``algebra``    kernels derived from one kernel: inside an RBF, normalised
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from bigpca.errors import closest
from bigpca.kernels.algebra import Normalized, RBFOf, normalized, rbf_of
from bigpca.kernels.base import Kernel, Product, Sum
from bigpca.kernels.custom import Fisher, FromFunction, GaussianMixtureScore, Precomputed
from bigpca.kernels.distance import RBF, Laplacian
from bigpca.kernels.dot import Cosine, Linear, Polynomial, Tanh
from bigpca.kernels.histogram import (
    ChiSquare,
    GeneralizedHistogramIntersection,
    Hellinger,
    HistogramIntersection,
    JensenShannon,
)
from bigpca.kernels.string import Spectrum, Subsequence, string_codes
from bigpca.records import described

__all__ = [
    "ChiSquare",
    "Cosine",
    "Fisher",
    "FromFunction",
    "GaussianMixtureScore",
    "GeneralizedHistogramIntersection",
    "Hellinger",
    "HistogramIntersection",
    "JensenShannon",
    "Kernel",
    "Laplacian",
    "Linear",
    "Normalized",
    "Polynomial",
    "Precomputed",
    "Product",
    "RBF",
    "RBFOf",
    "Spectrum",
    "Subsequence",
    "Sum",
    "Tanh",
    "kernel_from",
    "normalized",
    "rbf_of",
    "string_codes",
]

_UNNAMED = (Kernel, FromFunction)  # the base, and that of a Python function, which no file holds
_KINDS: dict[str, type[Kernel]] = {
    name: kind
    for name in __all__
    if isinstance(kind := globals().get(name), type) and issubclass(kind, Kernel) and kind not in _UNNAMED
}
_NAMES: dict[str, type[Kernel]] = {  # scikit-learn's names
    "linear": Linear,
    "poly": Polynomial,
    "polynomial": Polynomial,
    "rbf": RBF,
    "laplacian": Laplacian,
    "sigmoid": Tanh,
    "cosine": Cosine,
    "precomputed": Precomputed,
}

_OTHERS = {"gaussian": "rbf", "gauss": "rbf", "rbf_kernel": "rbf", "tanh": "sigmoid", "chi2": "ChiSquare"}


def kernel_from(description: Mapping[str, Any]) -> Kernel:
    """Restore a kernel, and those inside it, from :meth:`Kernel.describe`.

    Parameters
    ----------
    description : the JSON values stored with a model.

    Returns
    -------
    Kernel

    Raises
    ------
    ModelFormatError
        If a name is unknown, or the parameters do not belong to this kernel.

    Examples
    --------
    >>> kernel_from({"kernel": "RBF", "gamma": 0.5})
    RBF(gamma=0.5)
    """
    return described("kernel", _KINDS, {key: _value(value) for key, value in description.items()})


def as_kernel(kernel: Kernel | str | Any) -> Kernel:
    """Convert to a kernel: a kernel is returned unchanged, a name gets its defaults, and a function is wrapped.

    Parameters
    ----------
    kernel : Kernel; scikit-learn's name or that of a class here, such as "rbf" or "RBF"; or a function of two blocks of
        rows, as for :class:`FromFunction`.

    Returns
    -------
    Kernel

    Raises
    ------
    TypeError, ValueError
        If it is none of these, or if the name is unknown or belongs to a kernel that requires
        parameters.

    Examples
    --------
    >>> as_kernel("rbf"), as_kernel("poly").degree
    (RBF(gamma=None), 3)
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return _named(kernel)
    if isinstance(kernel, type) or not callable(kernel):
        raise TypeError(
            f"kernel = {kernel!r} is neither a kernel, nor a name, nor a function of two blocks of rows. Use for "
            "example bigpca.kernels.RBF(gamma=0.1)."
        )
    return FromFunction(kernel)


def _named(name: str) -> Kernel:
    kinds = _NAMES | _KINDS
    if name not in kinds:
        hint = f" Did you mean {_OTHERS[name.lower()]}?" if name.lower() in _OTHERS else closest(name, kinds)
        ready = [name for name in _NAMES if name != "polynomial"]
        ready += [name for name, kind in _KINDS.items() if kind not in _NAMES.values() and not _needed(kind)]
        parameters = {name: [item.name for item in fields(kinds[name])] for name in ready}
        listed = ", ".join(name + (f" ({', '.join(own)})" if own else "") for name, own in parameters.items())
        raise ValueError(f"kernel = {name!r} is not known.{hint} Give a Kernel, or one of {listed}.")
    needed = _needed(kinds[name])
    if needed:
        raise ValueError(
            f"kernel = {name!r} requires values for {', '.join(needed)}. Use "
            f"bigpca.kernels.{kinds[name].__name__}(...)."
        )
    return kinds[name]()


def _needed(kind: type[Kernel]) -> list[str]:
    return [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]


def _value(value: Any) -> Any:
    if isinstance(value, Mapping) and "kernel" in value:
        return kernel_from(value)
    return tuple(_value(item) for item in value) if isinstance(value, list) else value
