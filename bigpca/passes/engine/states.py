"""The state of one pass: its accumulators over some groups, with the counts and stamps of their rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from bigpca.arrays import Array
from bigpca.passes.accumulators.base import Accumulator

A = TypeVar("A", bound=Accumulator)


@dataclass(frozen=True)
class PassState:
    """Closed accumulators over a range of groups.

    Attributes
    ----------
    parts : dict of str to Accumulator
    rows : int
        Rows folded.
    omitted : int
        Rows omitted because of NaN or infinite values.
    stamps : dict of int to str
        For each group, a digest of (key, size, mtime) of the files it read.
    rounded : int
        Number of integers that float64 cannot represent.
    first : dict of str to str
        Digests of the first rows of Dask arrays, by name: the same at every read, unless their values change.
    """

    parts: dict[str, Accumulator]
    rows: int
    omitted: int
    stamps: dict[int, str]
    rounded: int = 0
    first: dict[str, str] = field(default_factory=dict)

    def __sizeof__(self) -> int:
        """Return the bytes of its arrays, from which Dask decides on which worker two states are merged."""
        return sum(array.nbytes for part in self.parts.values() for array in part.to_arrays().values())

    def part(self, name: str, kind: type[A]) -> A:
        """Return one accumulator.

        Raises
        ------
        TypeError
            If it is of another kind.
        """
        found = self.parts[name]
        if not isinstance(found, kind):
            raise TypeError(f"the state holds {name} as {type(found).__name__}, a {kind.__name__} was expected")
        return found

    def merge(self, other: PassState) -> PassState:
        """Return the state of both ranges of groups, changing neither."""
        parts = {name: part.merge(other.parts[name]) for name, part in self.parts.items()}
        return PassState(
            parts, self.rows + other.rows, self.omitted + other.omitted, self.stamps | other.stamps,
            self.rounded + other.rounded, self.first | other.first,
        )  # fmt: skip

    def to_arrays(self) -> dict[str, Array]:
        """Return the state as named arrays, without object arrays."""
        arrays = {f"{name}.{key}": a for name, part in self.parts.items() for key, a in part.to_arrays().items()}
        record = {"rows": self.rows, "omitted": self.omitted, "rounded": self.rounded, "stamps": self.stamps}
        record["first"] = self.first
        return arrays | {"record": np.frombuffer(json.dumps(record).encode(), np.uint8)}

    @classmethod
    def from_arrays(cls, templates: Mapping[str, Accumulator], arrays: Mapping[str, Array]) -> PassState:
        """Return the state that :meth:`to_arrays` wrote."""
        record = json.loads(bytes(arrays["record"]).decode())
        parts = {
            name: template.with_arrays(
                {k.removeprefix(f"{name}."): a for k, a in arrays.items() if k.startswith(f"{name}.")}
            )
            for name, template in templates.items()
        }
        stamps = {int(k): v for k, v in record["stamps"].items()}
        return cls(parts, record["rows"], record["omitted"], stamps, record["rounded"], record["first"])


def digest(value: object) -> str:
    """Return a short digest of JSON-able metadata."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
