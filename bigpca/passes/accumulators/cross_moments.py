"""Moments of rows side by side, with the sums of row norms that debiased statistics need; and states for each fold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector, multiply_packed
from bigpca.passes.accumulators.base import Accumulator, Arrays, Codes, codes_bytes
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block, cached_rows, column_sums
from bigpca.planning import BlockForm, Work
from bigpca.seeds import uniforms
from bigpca.solvers.pairs import Columns, block_edges


@dataclass
class CrossMoments(Accumulator):
    """Moments of L blocks of columns side by side, and the sums of their row norms, all about the mean.

    With ``u_i(t) = |x_i(t) - mean_i|^2`` of block i of row t: ``norms = sum_t u(t)`` (L,), ``products = sum_t u(t)
    u(t)'`` (L, L) and ``vectors = sum_t u(t) (x(t) - mean)'`` (L, d), in float64. Beside the scatter they give the
    unbiased HSIC of every two blocks (Song et al. 2012, eq. 5). Inside a group the sums are about its shift; they are
    moved to its mean when it closes, and to the common mean when two states merge. Third and fourth moments move with
    the scatter, exactly: sums about a distant shift would lose them.

    Rows have no weights: copies would count as independent pairs.

    Attributes
    ----------
    widths : tuple of int
        Columns of each block.
    moments : Moments
        Of all columns.
    norms : ndarray of shape (L,), products : ndarray of shape (L, L), vectors : ndarray of shape (L, d)
    """

    tag: ClassVar[str] = "CrossMoments"

    widths: tuple[int, ...]
    moments: Moments = field(default_factory=lambda: Moments(0))
    norms: Vector = field(default_factory=lambda: np.zeros(0))
    products: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    vectors: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    _shift: Vector | None = field(default=None, repr=False)

    @property
    def n_features(self) -> int:
        """Columns of all blocks."""
        return sum(self.widths)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.moments.count

    @property
    def edges(self) -> list[Columns]:
        """The columns of each block."""
        return block_edges(self.widths)

    def fresh(self, start: int, stop: int) -> CrossMoments:
        size, d = len(self.widths), self.n_features
        moments = Moments(d).fresh(start, stop)
        return CrossMoments(self.widths, moments, np.zeros(size), np.zeros((size, size)), np.zeros((size, d)))

    def update(self, block: Block) -> None:
        if block.weights is not None:
            raise TypeError("the rows have weights, which CrossMoments cannot use: copies are not independent pairs.")
        self._shift = block.shift
        self.moments.update(block)
        edges, step = self.edges, cached_rows(8 * self.n_features)
        for i in range(0, block.count, step):
            rows = block.values[i : i + step].astype(np.float64, copy=False)
            u = np.stack([np.einsum("ij,ij->i", rows[:, one], rows[:, one]) for one in edges])
            self.norms += u.sum(axis=1)
            self.products += u @ u.T
            self.vectors += u @ rows

    def close(self) -> None:
        self.moments.close()
        if self._shift is None or not self.count:
            return
        offset = self.moments.mean - self._shift
        self._move(-offset, self.count * offset)
        self._shift = None

    def _move(self, d: Vector, sums: Vector) -> None:
        """Move the sums in place, from rows z to rows z + d; ``sums = sum_t z(t)``, and the moments are final.

        z -> z + d gives u -> u + e with e = 2 d_i'z_i + |d_i|^2 for each block i.
        """
        n, edges = self.count, self.edges
        D = np.zeros((self.n_features, len(edges)))
        for i, one in enumerate(edges):
            D[one, i] = d[one]
        c = np.array([d[one] @ d[one] for one in edges])
        # Of the rows z: G = (sum z z') D, from the scatter about their mean; ds = D' sum z, e1 = sum e, and sum e e'.
        ds = D.T @ sums
        G = multiply_packed(self.moments.packed, D) + np.outer(sums / max(n, 1), ds)
        e1 = 2 * ds + n * c
        ee = 4 * D.T @ G + 2 * np.outer(ds, c) + 2 * np.outer(c, ds) + n * np.outer(c, c)
        shared = 2 * self.vectors @ D + np.outer(self.norms, c)
        self.products += shared + shared.T + ee
        self.vectors += np.outer(self.norms, d) + 2 * G.T + np.outer(c, sums) + np.outer(e1, d)
        self.norms += e1

    def merge(self, other: CrossMoments) -> CrossMoments:
        if not other.count or not self.count:
            return self if self.count else other
        moments = self.moments.merge(other.moments)
        # Each side's sums move from its own mean to the common one, and then add up.
        parts = []
        for state in (self, other):
            moved = replace(
                state, norms=state.norms.copy(), products=state.products.copy(), vectors=state.vectors.copy()
            )
            moved._move(state.moments.mean - moments.mean, np.zeros(self.n_features))
            parts.append(moved)
        a, b = parts
        return CrossMoments(self.widths, moments, a.norms + b.norms, a.products + b.products, a.vectors + b.vectors)

    @property
    def state_bytes(self) -> int:
        size = len(self.widths)
        return Moments(self.n_features).state_bytes + 8 * size * (1 + size + self.n_features)

    def cost(self, rows: BlockForm) -> Work:
        d, size = self.n_features, len(self.widths)
        strip = 16 * d * min(rows.rows, cached_rows(8 * d)) + 8 * 6 * size * d
        return Moments(d).cost(rows) + Work(strip, float((2 + 2 * size) * d))

    def to_arrays(self) -> Arrays:
        own = {"norms": self.norms, "products": self.products, "vectors": self.vectors}
        return own | {f"moments_{name}": array for name, array in self.moments.to_arrays().items()}

    def with_arrays(self, arrays: Mapping[str, Array]) -> CrossMoments:
        own = {n.removeprefix("moments_"): a for n, a in arrays.items() if n.startswith("moments_")}
        moments = Moments(self.n_features).with_arrays(own)
        return CrossMoments(self.widths, moments, arrays["norms"], arrays["products"], arrays["vectors"])

    def identity(self) -> dict[str, object]:
        return {"widths": list(self.widths)}


MAX_FOLDS = 20


@dataclass
class FoldStates(Accumulator):
    """One state for each fold of the rows, or for each group of them, all from one read.

    What is left without a fold is merged from the others; nothing is subtracted. Groups merge by their labels.

    Attributes
    ----------
    template : Accumulator
        Of every fold; one that takes dense rows.
    n_folds : int
    codes : ndarray of shape (rows,), int32, or CodeRows, or None
        Folds of rows ``first_row : first_row + rows``; None draws them by row number, whatever the order of values.
    labels : ndarray of shape (n_folds,), sorted, or None
        Of groups, if the folds are such.
    seed : int
    states : tuple of Accumulator
    """

    tag: ClassVar[str] = "FoldStates"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "weights"})

    template: Accumulator
    n_folds: int
    codes: Codes | None = None
    labels: Array | None = None
    seed: int = 0
    first_row: int = 0
    states: tuple[Accumulator, ...] = ()

    def bare(self) -> FoldStates:
        return replace(self, codes=None)

    def for_rows(self, start: int, stop: int) -> FoldStates:
        if self.codes is None:
            return self
        return replace(self, codes=self.codes[start - self.first_row : stop - self.first_row], first_row=start)

    def fresh(self, start: int, stop: int) -> FoldStates:
        states = tuple(self.template.fresh(start, stop) for _ in range(self.n_folds))
        return replace(self.for_rows(start, stop), states=states)

    def _folds_of(self, rows: Integers) -> Integers:
        if self.codes is not None:
            return self.codes[rows - self.first_row].astype(np.int64)
        first, last = int(rows.min()), int(rows.max()) + 1
        drawn = uniforms(self.seed, "folds", first, last, 1)[:, 0]
        return (drawn[rows - first] * self.n_folds).astype(np.int64)

    def update(self, block: Block) -> None:
        if not block.count:
            return
        folds = self._folds_of(block.rows)
        for fold, state in enumerate(self.states):
            own = np.flatnonzero(folds == fold)
            if len(own):
                values, weights = block.values[own], None if block.weights is None else block.weights[own]
                sums = column_sums(values, weights=weights)
                state.update(replace(block, values=values, rows=block.rows[own], sums=sums, weights=weights))

    def close(self) -> None:
        self.codes = None
        for state in self.states:
            state.close()

    def merge(self, other: FoldStates) -> FoldStates:
        union, own, others = self.union(other)
        found = dict(zip(own.tolist(), self.states, strict=True))
        for i, state in zip(others.tolist(), other.states, strict=True):
            found[i] = found[i].merge(state) if i in found else state
        states, labels = tuple(found[i] for i in range(len(union))), None if self.labels is None else union
        return replace(self, n_folds=len(union), codes=None, labels=labels, states=states)

    def union(self, other: FoldStates) -> tuple[Array, Integers, Integers]:
        """Return the folds of both, and where those of each are among them.

        Raises
        ------
        ValueError, TypeError
            If only one has groups, or if labels are numbers on one side and strings on the other.
        """
        if self.labels is other.labels:  # of one read, or of rows without groups
            same = np.arange(self.n_folds)
            return same, same, same
        if self.labels is None or other.labels is None:
            raise ValueError(
                "the folds of some rows are groups, those of others are not. Give groups= for all rows, or for none."
            )
        from bigpca.data.labels import merge_classes  # imports file formats

        return merge_classes(self.labels, other.labels)

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(int(getattr(state, "count", 0)) for state in self.states)

    @property
    def state_bytes(self) -> int:
        return self.n_folds * self.template.state_bytes

    def cost(self, rows: BlockForm) -> Work:
        work = self.template.cost(rows)
        copied = 2 * rows.rows * rows.columns * rows.itemsize
        return replace(work, bytes=self.n_folds * work.bytes + copied)

    def to_arrays(self) -> Arrays:
        return {f"{i}_{name}": a for i, state in enumerate(self.states) for name, a in state.to_arrays().items()}

    def with_arrays(self, arrays: Mapping[str, Array]) -> FoldStates:
        each = [{n.partition("_")[2]: a for n, a in arrays.items() if n.partition("_")[0] == str(i)}
                for i in range(self.n_folds)]  # fmt: skip
        return replace(self, codes=None, states=tuple(self.template.with_arrays(own) for own in each))

    def identity(self) -> dict[str, object]:
        codes = self.seed if self.codes is None else hashlib.sha256(codes_bytes(self.codes)).hexdigest()
        return {"of": self.template.describe(), "folds": self.n_folds, "codes": codes}
