"""The parameters of kernels: checked, and as JSON values."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Whether a parameter is a real number; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def finite_numbers(name: str, values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Return ``count`` finite floats, or raise an error with the parameter's name."""
    if len(values) != count or not all(is_number(value) and isfinite(value) for value in values):
        raise ValueError(f"{name} = {values!r}, but every kernel requires one finite number: {count} in all.")
    return tuple(float(value) for value in values)


def checked_gamma(gamma: float | None) -> None:
    """Check that gamma is None or a finite number above 0.

    Raises
    ------
    ValueError
    """
    if isinstance(gamma, str):
        raise ValueError(
            f"gamma = {gamma!r}; a finite number above 0 was expected, or None for 1 / d. "
            'Use 1 / (X.shape[1] * X.var()) for scikit-learn\'s "scale", which needs all of X, and None for "auto".'
        )
    if gamma is not None and not (is_number(gamma) and isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma = {gamma!r} is not a finite number above 0. Use for example 0.1, or None for 1 / d.")


def checked_coef0(coef0: float) -> None:
    """Check that coef0 is finite.

    Raises
    ------
    ValueError
    """
    if not is_number(coef0) or not isfinite(coef0):
        raise ValueError(f"coef0 = {coef0!r} is not a finite number. Use for example 1.0.")


def json_value(name: str, value: Any) -> Any:
    """Return a parameter as a JSON value; ``name`` is for the message.

    Raises
    ------
    TypeError
        If it is a Python function or object, which cannot be stored in a file.
    """
    if hasattr(value, "describe"):
        return value.describe()
    if isinstance(value, tuple):
        return [json_value(name, item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is not None and not isinstance(value, bool | int | float | str):
        kind = "function" if callable(value) else "object"
        raise TypeError(
            f"{name} is the Python {kind} {value!r}, which cannot be stored in a model "
            "file. Keep the model in memory, or pickle it."
        )
    return value
