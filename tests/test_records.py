"""Frozen dataclasses that share their methods do what Python's own do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from bigpca import records


class Base:
    a: int
    b: Any = dataclasses.field(default_factory=list, hash=False)
    shown: int = dataclasses.field(default=3, repr=False, compare=False)
    made: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.a + 1)

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


class OwnMethods(Base):
    c: str = "c"

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnMethods) and self.c == other.c


def made(dataclass: Callable[..., Any], kind: type, **options: Any) -> Any:
    """The class and its bases, each with the decorator."""
    bases = tuple(made(dataclass, base, frozen=True) for base in kind.__bases__ if base is not object)
    body = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return dataclass(**options)(type(kind)(kind.__name__, bases, body))


@pytest.mark.parametrize("kind", [Base, OwnMethods])
@pytest.mark.parametrize(
    "options", [{}, {"eq": False}, {"repr": False}, {"eq": False, "repr": False}, {"kw_only": True}]
)
def test_it_does_what_pythons_frozen_dataclasses_do(
    kind: type, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for dataclass in (dataclasses.dataclass, records.dataclass):
        cls = made(dataclass, kind, frozen=True, **options)
        monkeypatch.setitem(globals(), kind.__name__, cls)  # where pickle looks for it
        one, alike, other = cls(a=1), cls(a=1, shown=4), dataclasses.replace(cls(a=1), a=2, b=[5])
        rejected = []
        for change in (
            lambda one, _: setattr(one, "a", 2),
            lambda one, _: setattr(one, "made", 2),
            lambda one, _: setattr(one, "new", 2),
            lambda one, _: delattr(one, "a"),
            lambda one, _: dataclasses.replace(one, new=1),
            lambda one, alike: hash(one) == hash(alike),
        ):
            try:
                rejected.append(str(change(one, alike)))
            except (dataclasses.FrozenInstanceError, TypeError) as error:
                rejected.append(f"{type(error).__name__}: {error}")
        shown = [text if "object at 0x" not in (text := repr(each)) else "object" for each in (one, other)]
        twins = [twin == one for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), alike, other, 1)]
        found.append((shown, twins, one.twice, vars(one), dataclasses.asdict(other), rejected))
    assert found[0] == found[1]


@pytest.mark.parametrize("child", [dataclasses.dataclass, records.dataclass])
@pytest.mark.parametrize("parent", [dataclasses.dataclass, records.dataclass])
def test_one_kind_can_extend_the_other(parent: Any, child: Any) -> None:
    class Wider(parent(frozen=True)(type("Parent", (), {"__annotations__": {"a": int}}))):  # type: ignore[misc]
        b: int = 2

    made = child(frozen=True)(Wider)
    assert made(1) == made(a=1, b=2) != made(1, 3)
    assert repr(made(1)).endswith("Wider(a=1, b=2)")
