"""Frozen records whose fields say what a file holds of them; files are written, checked and read back from that.

A record is a dataclass with fields made by :func:`stored`. :func:`pack` returns its arrays and JSON values, and
:func:`unpack` the record, after it has compared dtypes, ranges and sizes: a file is not trusted. A part of a
record has the name of its field before two underscores, and what is None is not in the file. Fields that no file holds
(a kernel that parameters name) come from the context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from bigpca.arrays import Array, named
from bigpca.errors import ModelFormatError, an, brief

FORM = "form"  # in the metadata of a field
PART = "__"  # between the name of a field and those of its parts
Record = TypeVar("Record")
Values: TypeAlias = dict[str, Any]  # JSON values by name
Coding: TypeAlias = tuple[Callable[[Any], tuple[Any, dict[str, Array]]], Callable[[Any, dict[str, Array], "Held"], Any]]


@dataclass
class Held:
    """What a file holds.

    Attributes
    ----------
    arrays : mapping of str to ndarray
    values : dict of JSON values
    context : dict
        What the file does not hold, by name of the field: values, and ``of`` for fields that do not know it themselves.
    sizes : dict of str to (int, str)
        Known sizes by their letter, each with the name of what has it.
    """

    arrays: Mapping[str, Array]
    values: Values
    context: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, tuple[int, str]] = field(default_factory=dict)

    def size(self, letter: str) -> int:
        """Return a known size."""
        return self.sizes[letter][0]

    def check(self, name: str, found: tuple[int, ...], letters: tuple[str, ...]) -> None:
        """Compare the sizes of an array with those that are known, and keep the others."""
        if len(found) != len(letters):
            raise ValueError(f"it has {name} of shape {found}; ({', '.join(letters)}) was expected")
        for letter, size in zip(letters, found, strict=True):
            self.sizes.setdefault(letter, (int(letter), "") if letter.isdigit() else (size, name))
        expected = tuple(self.size(letter) for letter in letters)
        if found != expected:
            other = [letter for letter, size in zip(letters, found, strict=True) if size != self.size(letter)]
            by = [self.sizes[letter][1] for letter in other if self.sizes[letter][1] not in ("", name)]
            known = f", as {by[0]} has it" if by else ""
            raise ValueError(f"it has {name} of shape {found}; {expected} was expected{known}")

    def array(self, name: str, *, gaps: bool = False) -> Array:
        """Return an array of numbers, which are finite except for ``gaps``, where NaN stands for what there is not."""
        found = self.arrays[name]
        plain = found.dtype.kind in "fiub" and found.dtype != np.float16
        if not plain or not (np.isfinite(found) | (gaps & np.isnan(found))).all():
            raise ValueError(f"it has {name} with values that are not finite numbers")
        return found


@dataclass(frozen=True)
class FileForm:
    """What a file holds of a field.

    Attributes
    ----------
    of : type, callable or None
        A type of numbers, str or bool; tuple, of numbers; a record, or several, and the file names one; a function
        of :class:`Held` and the name that returns the template of a state; None for an array, or for what the context
        says.
    sizes : tuple of str, or None
        Sizes of an array, by letters; each is one number within a file. Digits are the number itself.
    least, most : float
        Range of numbers.
    coding : pair of functions, or None
        From a value to a JSON value and arrays, and back.
    optional : bool
        Whether the value may be None.
    """

    of: Any
    sizes: tuple[str, ...] | None
    least: float
    most: float
    coding: Coding | None
    optional: bool


def stored(  # as of dataclasses.field
    *sizes: str,
    of: Any = None,
    least: float = -math.inf,
    most: float = math.inf,
    coding: Coding | None = None,
    optional: bool = False,
    default: object = MISSING,
) -> Any:
    """Return a field that a file holds: an array of these sizes, or as :class:`FileForm` says.

    What is optional may be None, and one with a default may be missing in the file.
    """
    form = FileForm(of, sizes or None, least, most, coding, optional)
    return field(default=default, metadata={FORM: form})


@cache
def _stored(kind: Any) -> tuple[Field[object], ...]:
    return tuple(one for one in fields(kind) if FORM in one.metadata)


def pack(record: Any, prefix: str = "") -> tuple[dict[str, Array], Values]:
    """Return the arrays and JSON values of a record."""
    arrays: dict[str, Array] = {}
    values: Values = {}
    for one in _stored(cast("Any", type(record))):
        form, name, value = one.metadata[FORM], prefix + one.name.rstrip("_"), getattr(record, one.name)
        if value is None:
            continue
        own: Mapping[str, Array] = {}
        if form.sizes is not None:
            arrays[name] = np.asarray(value)
        elif form.coding is not None:
            values[name], own = form.coding[0](value)
        elif hasattr(value, "to_arrays"):
            own = value.to_arrays()
        elif _is_record(type(value)):
            more, inner = pack(value, f"{name}{PART}")
            arrays, values = arrays | more, values | inner | {name: type(value).__name__}
        else:
            values[name] = list(map(float, value)) if isinstance(value, tuple) else form.of(value)
        arrays |= {f"{name}{PART}{key}": np.asarray(array) for key, array in own.items()}
    return arrays, values


def unpack(kind: type[Record], held: Held, prefix: str = "") -> Record:
    """Return the record that :func:`pack` packed; what its fields cannot say is checked by its method ``checked``.

    Raises
    ------
    KeyError, TypeError, ValueError
        For what is missing, of another kind, shape or range, or not finite.
    """
    given: dict[str, object] = {}
    for one in fields(cast("Any", kind)):
        form, name = one.metadata.get(FORM), prefix + one.name.rstrip("_")
        if form is None:
            given |= {one.name: held.context[one.name]} if one.name in held.context else {}
        elif name in held.values or name in held.arrays or any(key.startswith(name + PART) for key in held.arrays):
            given[one.name] = _read(one, name, held)
        elif form.optional:
            given[one.name] = None
        elif one.default is MISSING:
            raise ValueError(f"it lacks {name}")
    made = kind(**given)
    checked = getattr(made, "checked", None)
    return cast("Record", made if checked is None else checked())


def _read(one: Field[object], name: str, held: Held) -> object:
    form, value, own = one.metadata[FORM], held.values.get(name), named(held.arrays, f"{name}{PART}")
    if form.sizes is not None:
        array = held.array(name)
        held.check(name, array.shape, form.sizes)
        return array
    if form.coding is not None:
        return form.coding[1](value, own, held)
    of: Any = held.context.get(one.name) if form.of is None else form.of
    kinds = {one.__name__: one for one in (of if isinstance(of, tuple) else (of,)) if _is_record(one)}
    if kinds:
        return unpack(kinds[str(value)], held, f"{name}{PART}")
    if own:  # a state
        template = of(held, name)
        gaps = getattr(template, "gaps", ())
        return template.with_arrays({key: held.array(f"{name}{PART}{key}", gaps=key in gaps) for key in own})
    if of is tuple:
        return tuple(check_number(name, each, float, form.least, form.most) for each in value or ())
    if of in (str, bool):
        if not isinstance(value, of):
            raise ValueError(f"it has {name} = {brief(repr(value))}; {an(of.__name__)} was expected")
        return value
    return check_number(name, value, of, form.least, form.most)


def check_number(name: str, value: object, of: Any, least: float = -math.inf, most: float = math.inf) -> Any:
    """Return a number of a file, checked: ``int`` would take 1.7, "12" and true too."""
    given, whole = f"it has {name} = {brief(repr(value))}", of is int
    known = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and math.isfinite(value)
    limit = 2**63 if whole else math.inf
    if not known or not least <= value < limit:  # type: ignore[operator]  # it is a number
        kind = f"an integer of at least {least:g}" if whole else "a finite number"
        raise ValueError(f"{given}; {kind} was expected" + (f" of at least {least:g}" if known and not whole else ""))
    if value > most:  # type: ignore[operator]
        raise ValueError(f"{given}; a number from {least:g} to {most:g} was expected")
    return of(value)


def check_shapes(record: Record) -> Record:
    """Return a record whose arrays have the sizes that its fields say; raises ValueError for others."""
    held = Held({}, {})
    for one in _stored(cast("Any", type(record))):
        sizes, value = one.metadata[FORM].sizes, getattr(record, one.name)
        if sizes is not None and value is not None:
            held.check(f"{type(record).__name__}.{one.name}", np.shape(value), sizes)
    return record


def size_of(record: Any, letter: str) -> int | None:
    """Return the size of that letter of the arrays of a record; None if none of its fields has it."""
    for one in _stored(cast("Any", type(record))):
        sizes = one.metadata[FORM].sizes or ()
        if letter in sizes:
            return int(np.shape(getattr(record, one.name))[sizes.index(letter)])
    return None


def of_part(part: str, name: str) -> property:
    """Return the attribute of a record that is one of its part; None where the part is None, or lacks it."""
    return property(lambda found: getattr(getattr(found, part), name, None))


def described(key: str, kinds: Mapping[str, type[Record]], values: Mapping[str, Any]) -> Record:
    """Return the record that JSON values describe: the name of its type under ``key``, and its fields.

    Raises
    ------
    ModelFormatError
        If the name is unknown, or the values do not belong to it.
    """
    name = values.get(key)
    if not isinstance(name, str) or name not in kinds:
        raise ModelFormatError(
            f"{name!r} is not {an(key)} of this version of bigpca ({', '.join(kinds)}). Load the model with the "
            "version that wrote it."
        )
    given, expected = set(values) - {key}, {one.name for one in fields(cast("Any", kinds[name]))}
    if given != expected:
        raise ModelFormatError(
            f"{name} is described by {sorted(given)}, but {sorted(expected)} were expected. Load it with the "
            "version that wrote it."
        )
    try:
        return kinds[name](**{one: values[one] for one in expected})
    except (TypeError, ValueError) as error:
        raise ModelFormatError(f"{name} is described by invalid values: {error}") from error


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and bool(_stored(kind))
