"""States of the dot matrix: panels of it (over pairs of row panels), or sums of it (over column blocks)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.passes.accumulators import (
    Accumulator,
    Arrays,
    add_upper,
    column_squares,
    product_scratch,
    symmetric_product,
)
from bigpca.passes.blocks import Block

WIDTH = 8192  # columns multiplied in the block's precision before they are added in float64


@dataclass
class DotPanels(Accumulator):
    """Row panels of the upper triangle of ``G = Y Y'`` (n, n), for shifted (and scaled) rows Y.

    Attributes
    ----------
    n_samples, n_features : int
    panels : tuple of (int, ndarray of shape (rows, n - first))
        First row, and ``G[first : first + rows, first:]``.
    """

    n_samples: int
    n_features: int
    panel_rows: int
    panels: tuple[tuple[int, NDArray[np.float64]], ...] = ()

    def fresh(self, start: int, stop: int) -> DotPanels:
        panel = np.zeros((stop - start, self.n_samples - start))
        return DotPanels(self.n_samples, self.n_features, self.panel_rows, ((start, panel),))

    def update(self, block: Block) -> None:
        raise NotImplementedError("a panel of the dot matrix is made of pairs of blocks: use add_pair")

    def add_pair(self, first: int, rows: NDArray[Any], other_first: int, others: NDArray[Any]) -> None:
        """Add the products of ``rows`` (a, d) with ``others`` (b, d), whose rows begin at ``first`` and ``other_first``.

        The product is summed in float64 every 8,192 columns; its bits do not depend on the panel's size.
        """
        start, panel = self.panels[0]
        target = panel[
            first - start : first - start + len(rows), other_first - start : other_first - start + len(others)
        ]
        for j in range(0, rows.shape[1], WIDTH):
            target += rows[:, j : j + WIDTH] @ others[:, j : j + WIDTH].T

    def merge(self, other: DotPanels) -> DotPanels:
        return DotPanels(self.n_samples, self.n_features, self.panel_rows, self.panels + other.panels)

    def matrix(self) -> NDArray[np.float64]:
        """Return G (n, n), both triangles."""
        G = np.zeros((self.n_samples, self.n_samples))
        for first, panel in self.panels:
            G[first : first + len(panel), first:] = panel
        return fill_lower(G)

    @property
    def state_bytes(self) -> int:
        return 8 * self.n_samples**2

    @property
    def flops_per_row(self) -> int:
        return self.n_samples * self.n_features

    def to_arrays(self) -> Arrays:
        return {f"panel-{first}": panel for first, panel in self.panels}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> DotPanels:
        panels = sorted((int(name.split("-")[1]), a) for name, a in arrays.items())
        return DotPanels(self.n_samples, self.n_features, self.panel_rows, tuple(panels))

    def describe(self) -> dict[str, Any]:
        return {"accumulator": "DotPanels", "panel_rows": self.panel_rows}


@dataclass
class DotSum(Accumulator):
    """``G = sum over column blocks of Y_J Y_J'`` (n, n), each column centred (and scaled) before its product.

    The columns' means, and their sums of squared deviations, are exact because a column block holds all rows.

    Attributes
    ----------
    n_samples : int
    scatter : ndarray of shape (n, n), float64; upper triangle
    means, squares : tuple of (first column, ndarray)
    """

    n_samples: int
    center: bool = True
    scale: bool = False
    scatter: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    means: tuple[tuple[int, NDArray[np.float64]], ...] = ()
    squares: tuple[tuple[int, NDArray[np.float64]], ...] = ()
    _product: NDArray[Any] | None = field(default=None, repr=False)

    def fresh(self, start: int, stop: int) -> DotSum:
        return DotSum(self.n_samples, self.center, self.scale, np.zeros((self.n_samples, self.n_samples)))

    def update(self, block: Block) -> None:
        values, first = block.values, int(block.rows[0])  # (n, columns); rows of the fold are columns of X
        residual, deviations = column_moments(block, self.center)
        self.means = (*self.means, (first, block.shift + residual))
        self.squares = (*self.squares, (first, deviations))
        if self.center:
            values = values - residual.astype(values.dtype)
        if self.scale:
            values = values / column_scale(deviations, block.shift, len(values)).astype(values.dtype)
        if self._product is None:
            self._product = product_scratch(len(values), values.dtype)
        add_upper(self.scatter, symmetric_product(values.T, self._product))

    def close(self) -> None:
        self._product = None

    def merge(self, other: DotSum) -> DotSum:
        means, squares = self.means + other.means, self.squares + other.squares
        return DotSum(self.n_samples, self.center, self.scale, self.scatter + other.scatter, means, squares)

    def matrix(self) -> NDArray[np.float64]:
        """Return G (n, n), both triangles."""
        return fill_lower(self.scatter.copy())

    def columns(self, which: str) -> NDArray[np.float64]:
        """Return the means or the squares of all columns, in order."""
        return np.concatenate([a for _, a in sorted(getattr(self, which), key=lambda item: item[0])])

    @property
    def state_bytes(self) -> int:
        return 8 * self.n_samples**2

    @property
    def product_bytes(self) -> int:
        return 4 * self.n_samples**2

    @property
    def flops_per_row(self) -> int:
        return self.n_samples**2

    def to_arrays(self) -> Arrays:
        named = {f"{which}-{first}": a for which in ("means", "squares") for first, a in getattr(self, which)}
        return {"scatter": self.scatter, **named}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> DotSum:
        parts = {
            which: tuple(
                sorted(((int(k.split("-")[1]), a) for k, a in arrays.items() if k.startswith(which)), key=_first)
            )
            for which in ("means", "squares")
        }
        return DotSum(self.n_samples, self.center, self.scale, arrays["scatter"], parts["means"], parts["squares"])

    def describe(self) -> dict[str, Any]:
        return {"accumulator": "DotSum", "center": self.center, "scale": self.scale}


def _first(item: tuple[int, NDArray[np.float64]]) -> int:
    return item[0]


def column_moments(block: Block, shifted: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the column means of a block of all rows, and the squares about them; exact where no shift was subtracted."""
    values = block.values
    if shifted:
        residual = block.sums / len(values)
        return residual, column_squares(values) - len(values) * residual**2
    mean = values.mean(axis=0, dtype=np.float64)
    total = np.zeros(values.shape[1])
    for i in range(0, len(values), 128):
        rows = values[i : i + 128] - mean
        total += np.einsum("ij,ij->j", rows, rows)
    return mean, total


def column_scale(squares: NDArray[np.float64], mean: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the standard deviations (divided by n) of columns, 1 where a column is constant to rounding.

    The rule for "constant" is scikit-learn's: ``var <= n eps var + (n mean eps)^2``.
    """
    variance = np.maximum(squares, 0) / max(1, count)
    eps = np.finfo(np.float64).eps
    constant = variance <= count * eps * variance + (count * mean * eps) ** 2
    return np.where(constant, 1.0, np.sqrt(np.where(constant, 1.0, variance)))


def fill_lower(G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Copy the upper triangle to the lower one, in place."""
    for i in range(0, len(G), 512):
        G[i : i + 512, :i] = G[:i, i : i + 512].T
        square = G[i : i + 512, i : i + 512]
        square[...] = np.triu(square) + np.triu(square, 1).T
    return G


def double_centre(G: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``H G H`` in place, ``H = I - 11'/n``: what is left of the mean after the shift."""
    means = G.mean(axis=0)
    G -= means
    G -= means[:, None] - means.mean()
    return G


@dataclass
class ColumnProducts(Accumulator):
    """``V' X_J`` for column blocks J of all rows, centred (and scaled): pieces of a (k, d) product.

    Attributes
    ----------
    V : ndarray of shape (n, k), float64
    pieces : tuple of (first column, ndarray of shape (k, columns))
    """

    n_columns: int
    V: NDArray[np.float64]
    center: bool = True
    scale: bool = False
    pieces: tuple[tuple[int, NDArray[np.float64]], ...] = ()

    def fresh(self, start: int, stop: int) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V, self.center, self.scale)

    def update(self, block: Block) -> None:
        values, first = block.values, int(block.rows[0])
        residual, deviations = column_moments(block, self.center)
        piece = (self.V.T.astype(values.dtype) @ values).astype(np.float64)
        if self.center:
            piece -= np.multiply.outer(self.V.sum(axis=0), residual)
        if self.scale:
            piece /= column_scale(deviations, block.shift, len(values))
        self.pieces = (*self.pieces, (first, piece))

    def close(self) -> None:
        self.V = self.V[:0]

    def merge(self, other: ColumnProducts) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale, self.pieces + other.pieces)

    def bare(self) -> ColumnProducts:
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale)

    def product(self) -> NDArray[np.float64]:
        """Return ``V' X`` (k, d)."""
        return np.concatenate([a for _, a in sorted(self.pieces, key=_first)], axis=1)

    @property
    def state_bytes(self) -> int:
        return 8 * int(self.V.shape[1]) * self.n_columns

    @property
    def flops_per_row(self) -> int:
        return 2 * int(self.V.size)

    def to_arrays(self) -> Arrays:
        return {f"piece-{first}": a for first, a in self.pieces}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> ColumnProducts:
        pieces = sorted(((int(k.split("-")[1]), a) for k, a in arrays.items()), key=_first)
        return ColumnProducts(self.n_columns, self.V[:0], self.center, self.scale, tuple(pieces))

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(np.ascontiguousarray(self.V).data).hexdigest()
        return {"accumulator": "ColumnProducts", "V": digest, "center": self.center, "scale": self.scale}
