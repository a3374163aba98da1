"""Answers that wait: rows were added, and nothing is solved until a fitted attribute is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Unsolved(Generic[Found]):
    """The answer to rows that were added and that nobody has asked for yet.

    Attributes
    ----------
    solve : callable
        Computes it, from statistics and parameters as they were when the rows were added.
    solver : str
    threads : int or None
        ``solve_threads``.
    lock : threading.Lock
        Held while one thread solves.
    """

    solve: Callable[[], Found]
    solver: str
    threads: int | None
    lock: Any = field(default_factory=threading.Lock)


NOT_SOLVED_FOR = {"n_features_in_", "feature_names_in_", "plan_", "seed_"}  # of the rows or of a fit


def is_answer(name: str) -> bool:
    """Whether an attribute of this name holds what a solve found."""
    return name in ("_found", "_preimage", "_certificate") or (
        name[-1:] == "_" != name[:1] and name not in NOT_SOLVED_FOR
    )
