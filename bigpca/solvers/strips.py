"""Long rows, strip by strip of their entries: what is worked on stays in a core's cache, and threads share the strips.

Strips and the order of sums depend on the length of the rows alone, so the number of threads changes no bit. BLAS has
one thread meanwhile: its own wait for each other in every product, which on a machine shared with other work takes
three times the processor time and saves none.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeAlias, TypeVar

from bigpca.arrays import Matrix
from bigpca.blas import threads_of_solve

T = TypeVar("T")
Strip: TypeAlias = "slice[int, int, int]"

STRIP_WIDTH = 1024  # most entries of long rows that are worked on at a time
PARTS = 8  # runs of strips, each with a sum of its own; no more threads are used
SHARED = 5e7  # multiplications (some 5 ms of a core) below which to start threads takes longer than they save


def each_strip(work: Callable[[Strip], object], N: int, each: int) -> None:
    """Call ``work`` for every strip of ``N`` entries, in any order; ``each`` entry takes so many multiplications."""

    def run(part: list[Strip]) -> None:
        for strip in part:
            work(strip)

    _over_parts(run, N, PARTS, each)


def sum_strips(work: Callable[[Strip], Matrix], N: int, each: int, parts: int = PARTS) -> Matrix:
    """Return the sum of the new arrays that ``work`` returns for every strip of ``N`` entries, from ``parts`` sums."""

    def add(part: list[Strip]) -> Matrix:
        total = work(part[0])
        for strip in part[1:]:
            total += work(strip)
        return total

    total, *others = _over_parts(add, N, parts, each)
    for other in others:
        total += other
    return total


def _over_parts(work: Callable[[list[Strip]], T], N: int, parts: int, each: int) -> list[T]:
    count = -(-N // STRIP_WIDTH)
    strips: list[Strip] = [slice(N * i // count, N * (i + 1) // count) for i in range(count)]
    # Runs of consecutive strips: their number depends on N alone, so the order of sums does too.
    parts = min(parts, count)
    edges = [count * p // parts for p in range(parts + 1)]
    runs = [strips[a:b] for a, b in pairwise(edges)]
    if parts == 1:
        return [work(strips)]
    with threads_of_solve() as threads:
        if threads == 1 or N * each < SHARED:
            return [work(run) for run in runs]
        with ThreadPoolExecutor(min(threads, parts), thread_name_prefix="bigpca-strips") as pool:
            return list(pool.map(work, runs))
