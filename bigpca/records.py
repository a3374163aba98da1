"""Dataclasses whose frozen kinds share ``__eq__``, ``__hash__`` and ``__repr__``.

Python compiles these for each class: that was a quarter of the time of ``import bigpca; bigpca.PCA``, which has 150.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import asdict as asdict
from dataclasses import astuple as astuple
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import replace as replace
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
def dataclass(
    *, frozen: bool = False, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def dataclass(
    cls: Any = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Any:
    """Do what :func:`dataclasses.dataclass` does.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Interval:
    ...     start: int
    ...     stop: int = 9
    >>> Interval(2), Interval(2) == Interval(2, 9), len({Interval(2), Interval(2)})
    (Interval(start=2, stop=9), True, 1)
    >>> Interval(2).start = 3
    Traceback (most recent call last):
    ...
    dataclasses.FrozenInstanceError: cannot assign to field 'start'
    """
    if not frozen:
        plain = dataclasses.dataclass(eq=eq, repr=repr, kw_only=kw_only)
        return plain if cls is None else plain(cls)

    def shared(cls: Any) -> Any:
        own = vars(cls)
        if eq and "__eq__" not in own:
            cls.__eq__ = _equal
        if eq and own.get("__hash__") is None:  # Python sets it to None where __eq__ is defined
            cls.__hash__ = _hash
        if repr and "__repr__" not in own:
            cls.__repr__ = _repr
        return dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=kw_only)(cls)

    return shared if cls is None else shared(cls)


def _names(record: Any, purpose: str) -> tuple[str, ...]:
    """The fields that are compared or shown."""
    return tuple(one.name for one in fields(record) if getattr(one, purpose))


def _equal(record: Any, other: object) -> Any:
    if other.__class__ is not record.__class__:
        return NotImplemented
    names = _names(record, "compare")
    return tuple(getattr(record, name) for name in names) == tuple(getattr(other, name) for name in names)


def _hash(record: Any) -> int:
    counted = (one.name for one in fields(record) if (one.compare if one.hash is None else one.hash))
    return hash(tuple(getattr(record, name) for name in counted))


@recursive_repr()
def _repr(record: Any) -> str:
    shown = ", ".join(f"{name}={getattr(record, name)!r}" for name in _names(record, "repr"))
    return f"{record.__class__.__qualname__}({shown})"
