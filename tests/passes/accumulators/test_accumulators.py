"""Every accumulator equals plain NumPy for any split and any merge tree, and none changes what it merges."""

import io
import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from inspect import isabstract
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import multivariate_normal

import bigpca
from bigpca import csr, kernels
from bigpca.arrays import mirror_upper, packed_diagonal, unpack_upper
from bigpca.costs import BlockForm
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.forms import DENSE
from bigpca.passes.accumulators.all_pairs import ColumnProducts, DotPanels, DotProduct, DotSum, KernelProduct
from bigpca.passes.accumulators.base import Accumulator, joined, update_all
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.kept_rows import Furthest, RowSample, RowsAt, RowTotals
from bigpca.passes.accumulators.landmark_moments import LandmarkMap, LandmarkMoments
from bigpca.passes.accumulators.moments import (
    ClassMoments,
    ColumnMoments,
    Hits,
    Moments,
    ProfileMoments,
    StoredColumnMoments,
)
from bigpca.passes.accumulators.observed_columns import (
    ExpectedScores,
    LatentModel,
    ObservedBlocks,
    ObservedColumns,
    ObservedPairs,
)
from bigpca.passes.accumulators.paired_moments import CrossMoments, SteppedMoments
from bigpca.passes.accumulators.row_weights import BestRows, Ones
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct, LeftProduct
from bigpca.passes.reading.blocks import Block
from bigpca.seeds import uniforms
from tests.passes.kit import full, normal, prepare_block, scatter_of
from tests.peaks import traced_peak

Array = NDArray[Any]
N, D, K = 23, 9, 3
W = np.random.default_rng(6).standard_normal((D, K))
V = np.linalg.qr(np.random.default_rng(5).standard_normal((N, K)))[0]
CHOSEN = np.array([0, 3, 4, 10, N - 1])
CODES = np.array([0, 2, -1, 2, 0, 0, 1, 2, 2, 0, -1, 0, 2, 2, 0, 0, 2, 0, 2, 2, 0, 0, 2], np.int32)  # (N,), 1 once
WEIGHTS = np.array([0, 1, 2, 0.5, 0, 3, 1, 1, 0.25, 7, 1, 0, 2, 2, 1, 1, 0.1, 4, 1, 1, 0, 2, 5.0])  # (N,)
HOLES = np.random.default_rng(7).random((N, D)) < 1 / 3
HOLES[2], HOLES[:, 4] = True, True


def at_work(template: Accumulator, start: int, stop: int) -> Any:
    """Bring a template to the task that folds rows ``start:stop``, as a fold does, and return the empty state."""
    travelling = template.for_rows(start, stop)
    assert travelling.shared is None
    return travelling.with_shared(template.shared).fresh(start, stop)


def row_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows ``start:stop`` in slabs that end at ``cuts``, as a group does."""
    state = at_work(template, start, stop)
    edges = [start, *cuts, stop]
    shift: Array | None = None
    for a, b in pairwise(edges):
        if b > a:
            shift = DENSE.mean(X[a:b]) if shift is None else shift
            state.update(prepare_block(X[a:b], a, shift, owned=False, nan_policy="raise", where="rows"))
    state.close()
    return state


def column_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold columns ``start:stop``, all rows, in blocks that end at ``cuts``."""
    state = template.for_rows(0, 0).with_shared(template.shared).fresh(0, 0)
    edges, holed = [start, *cuts, stop], "nan" in template.accepts
    for a, b in pairwise(edges):
        if b > a:
            values = np.ascontiguousarray((with_holes(X) if holed else X)[:, a:b])
            shift = DENSE.mean(values) if getattr(template, "center", True) else np.zeros(b - a, X.dtype)
            block = prepare_block(values, 0, shift, owned=False, nan_policy="raise", where="columns", keep_nan=holed)
            block = Block(block.values, np.arange(a, b), block.shift, block.sums)
            state.update(block.weighted(WEIGHTS) if holed else block)
    state.close()
    return state


def panel_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fill the panel of rows ``start:stop`` from pairs of slabs."""
    state = at_work(template, start, stop)
    ends = sorted({*cuts, stop, len(X)} - {start})
    slabs = [(a, b) for a, b in zip([start, *ends], ends, strict=False) if b > a]
    for a, b in slabs:
        if a < stop:
            for first, last in slabs:
                if first >= a:
                    state.add_pair(a, X[a:b], first, X[first:last].T)
    state.close()
    return state  # type: ignore[no-any-return]


def swept_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Sweep a linear kernel over the panel of rows ``start:stop`` and all tiles after it."""
    state = at_work(template, start, stop)
    wide = X.astype(np.float64)
    edges = sorted({start, *cuts, stop, len(X)})
    tiles = [(a, b) for a, b in pairwise(edges) if a >= start]
    for a, b in tiles:
        if b <= stop:
            for first, last in tiles:
                if first >= a:
                    state.add_tile(wide[a:b] @ wide[first:last].T, a, first)
    state.close()
    return state  # type: ignore[no-any-return]


def scaled(X: Array, center: bool, scale: bool) -> Array:
    wide = X.astype(np.float64)
    centred = wide - wide.mean(axis=0) if center else wide
    return centred / wide.std(axis=0) if scale else centred


def state_about_one_shift(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows about a shift that all groups share, as the passes after the first do."""
    state, shift = at_work(template, start, stop), X.mean(0, "f8").astype(X.dtype)
    for a, b in pairwise([start, *cuts, stop]):
        if b > a:
            state.update(prepare_block(X[a:b], a, shift, owned=False, nan_policy="raise", where="rows"))
    state.close()
    return state


def state_about_zero(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows as they are."""
    state = at_work(template, start, stop)
    for a, b in pairwise([start, *cuts, stop]):
        if b > a:
            zero = np.zeros(X.shape[1], X.dtype)
            state.update(prepare_block(X[a:b], a, zero, owned=False, nan_policy="raise", where="rows"))
    state.close()
    return state


def with_holes(X: Array) -> Array:
    """Return rows of which a third of the entries, one row and one column are missing."""
    holed = X.copy()
    holed[HOLES] = np.nan
    return holed


def holed_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows with NaN and weights, as a fold does that counts what is there."""
    state, later = at_work(template, start, stop), isinstance(template, ObservedPairs | ExpectedScores)
    shift = X.mean(0, "f8").astype(X.dtype) if later else None  # of an earlier read
    for a, b in pairwise([start, *cuts, stop]):
        present = np.flatnonzero(WEIGHTS[a:b] > 0) + a
        if len(present):
            rows = with_holes(X)[present]
            shift = DENSE.mean(rows) if shift is None else shift
            block = prepare_block(
                rows, a, shift, owned=True, nan_policy="raise", where="rows", numbers=present, keep_nan=True
            )
            state.update(block.weighted(WEIGHTS[present]))
    state.close()
    return state


def _observed(X: Array) -> list[Array]:
    there, values = ~HOLES * WEIGHTS[:, None], np.where(HOLES, 0, X.astype("f8"))
    weights = there.sum(0)
    means = np.divide((there * values).sum(0), weights, out=np.zeros(D), where=weights > 0)
    share = 1 - weights.sum() / (WEIGHTS.sum() * D)
    return [np.array([(WEIGHTS > 0).sum(), WEIGHTS.sum(), 1]), weights, means, np.array(share)]


def _of_pairs(X: Array) -> list[Array]:
    shift = X.mean(0, "f8").astype(X.dtype)
    there, values = ~HOLES * WEIGHTS[:, None], np.where(HOLES, 0, (X - shift).astype("f8"))
    return [shift.astype("f8"), np.triu(values.T @ (there * values)), np.triu(there.T @ ~HOLES)]


LATENT = LatentModel(W, np.linspace(-0.5, 0.5, D), np.linspace(0.4, 0.9, D))


def _expected(X: Array) -> list[Array]:
    """Return what each row of its own says, by the joint normal density of its columns and scores."""
    rows, shift = X.astype("f8"), X.mean(0, "f8").astype(X.dtype)
    seconds, firsts, scores, likelihood = np.zeros((D, K + 1, K + 1)), np.zeros((D, K + 1)), np.zeros((K + 1,) * 2), 0.0
    for row, holes, weight in zip(rows - shift, HOLES, WEIGHTS, strict=True):
        o = ~holes
        S = W[o] @ W[o].T + np.diag(LATENT.noise[o])
        z = W[o].T @ np.linalg.solve(S, row[o] - LATENT.mean[o])
        second = np.outer(np.append(z, 1), np.append(z, 1))
        second[:K, :K] += np.eye(K) - W[o].T @ np.linalg.solve(S, W[o])
        seconds[o] += weight * second
        firsts[o] += weight * row[o, None] * np.append(z, 1)
        scores += weight * second * o.any()
        likelihood += weight * multivariate_normal(LATENT.mean[o], S).logpdf(row[o]) if o.any() and weight else 0.0
    upper = np.triu_indices(K + 1)
    there = ~HOLES * WEIGHTS[:, None]
    squares = (there * np.where(HOLES, 0, rows - shift) ** 2).sum(0)
    return [seconds[:, *upper], firsts, scores[upper], squares, there.sum(0), np.array(likelihood)]


def sparse_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows ``start:stop`` as CSR blocks, as the engine does: whole, or in dense strips of two rows."""
    state = at_work(template, start, stop)
    strip_shift: Array | None = None
    for a, b in pairwise([start, *cuts, stop]):
        if b > a:
            centre = X[:5].mean(0, "f8") if isinstance(template, FusedProduct) and template.by_driver else None
            block = Block.about(csr_array(X[a:b]), np.arange(a, b), centre)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(csr, "STRIP_BYTES", 2 * D * X.itemsize)
                strip_shift = update_all([state], block, strip_shift)
    state.close()
    return state


def weighted_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    """Fold rows ``start:stop`` with their weights; rows of weight 0 are absent from blocks."""
    state = at_work(template, start, stop)
    shift: Array | None = None
    for a, b in pairwise([start, *cuts, stop]):
        own = np.arange(a, b)[WEIGHTS[a:b] > 0]
        if len(own):
            shift = DENSE.mean(X[own]) if shift is None else shift
            block = prepare_block(X[own], a, shift, owned=False, nan_policy="raise", where="rows", numbers=own)
            state.update(block.weighted(WEIGHTS[own]))
    state.close()
    return state


def _weighted(X: Array) -> list[Array]:
    wide, w = X.astype("f8"), WEIGHTS
    mean = w @ wide / w.sum()
    scatter = (wide - mean).T @ (w[:, None] * (wide - mean))
    return [np.array(np.count_nonzero(w)), mean, scatter, np.array([w.sum(), w @ w])]


@dataclass(frozen=True)
class Case:
    """One accumulator: how to fold it, what it knows, and what plain NumPy says."""

    name: str
    template: Callable[[], Accumulator]
    fold: Callable[[Accumulator, Array, int, int, list[int]], Accumulator]
    size: int
    answer: Callable[[Any], list[Array]]
    truth: Callable[[Array], list[Array]]


def _dot(center: bool, scale: bool) -> Case:
    return Case(
        f"DotSum center={center} scale={scale}",
        lambda: DotSum(N, center, scale),
        column_state,
        D,
        lambda s: [mirror_upper(s.matrix()), joined(s.means), joined(s.squares)],
        lambda X: [scaled(X, center, scale) @ scaled(X, center, scale).T, X.mean(0, "f8"), np.diag(scatter_of(X))],
    )


def _products(center: bool, scale: bool) -> Case:
    return Case(
        f"ColumnProducts center={center} scale={scale}",
        lambda: ColumnProducts(D, V, center, scale),
        column_state,
        D,
        lambda s: [s.product()],
        lambda X: [V.T @ scaled(X, center, scale)],
    )


def _dot_product(center: bool, scale: bool) -> Case:
    return Case(
        f"DotProduct center={center} scale={scale}",
        lambda: DotProduct(N, K, V, np.dtype("f8"), center, scale),
        column_state,
        D,
        lambda s: [s.product, np.array(s.total)],
        lambda X: [
            scaled(X, center, scale) @ (scaled(X, center, scale).T @ V),
            np.array((scaled(X, center, scale) ** 2).sum()),
        ],
    )


def _fused(by_driver: bool, fold: Any = None, squared: bool = True) -> Case:
    return Case(
        f"FusedProduct {'of CSR rows ' if fold else ''}by_driver={by_driver}{'' if squared else ' without squares'}",
        lambda: FusedProduct.of(D, DenseFactor(W), squared=squared, by_driver=by_driver),
        fold or (state_about_one_shift if by_driver else row_state),
        N,
        lambda s: [
            np.array(s.count), s.mean, s.centred(), s.centred_squares() if squared else np.ones(1 + s.squares.size)
        ],
        lambda X: [
            np.array(len(X)), X.mean(0, "f8"), scatter_of(X) @ W, np.diag(scatter_of(X)) if squared else np.ones(1)
        ],
    )  # fmt: skip


def test_products_of_groups_far_from_each_other_merge_to_the_rounding_of_float64() -> None:
    """Rows in float32 about their group's mean are small; the means' distance, 1e4 deviations, is float64's."""
    rng = np.random.default_rng(0)
    groups = [(rng.standard_normal((50, D)) + 1e4 * (g % 2)).astype("f4") for g in range(8)]
    state: Any = None
    for group in groups:
        own = row_state(FusedProduct.of(D, DenseFactor(W)), group, 0, len(group), [])
        state = own if state is None else state.merge(own)
    truth = scatter_of(np.concatenate(groups))
    assert state.precision == np.finfo("f4").eps
    np.testing.assert_allclose(state.centred(), truth @ W, rtol=0, atol=1e-11 * np.abs(truth @ W).max())


def _chosen_rows(form: str) -> list[Case]:
    """Landmarks, and rows that are chosen: of dense rows, or of sparse ones."""
    fold, which = (state_about_zero, "") if form == "dense" else (sparse_state, " of CSR rows")
    return [
        Case(
            f"LandmarkMoments{which}",
            lambda: LandmarkMoments.of(D, FEATURES),
            fold,
            N,
            lambda s: [s.moments.mean, full(s.moments.scatter), s.diagonal, s.residual],
            lambda X: [
                _features(X).mean(0),
                scatter_of(_features(X)),
                np.array([(X.astype("f8") ** 2).sum()]),
                _left_by_features(X),
            ],
        ),
        Case(
            f"BestRows{which}",
            lambda: BestRows(D, 5, Ones(), 3, "race", itemsize=4),
            fold,
            N,
            lambda s: [s.indices, s.rows, np.array([s.count, s.weight_sum])],
            _best_rows,
        ),
        Case(
            f"RowsAt{which}",
            lambda: RowsAt(D, CHOSEN, itemsize=4),
            fold,
            N,
            lambda s: [s.indices[np.argsort(s.indices)], s.rows[np.argsort(s.indices)]],
            lambda X: [CHOSEN, X[CHOSEN]],
        ),
    ]


SIDES = (4, 3, D - 7)


def _cross_answer(state: Any) -> list[Array]:
    return [np.array(state.count), full(state.moments.scatter), state.norms, state.products, state.vectors]


def _cross_truth(X: Array) -> list[Array]:
    Z = X.astype("f8") - X.mean(0, "f8")
    u = np.stack([(part**2).sum(1) for part in np.split(Z, np.cumsum(SIDES)[:-1], axis=1)])
    return [np.array(len(X)), Z.T @ Z, u.sum(1), u @ u.T, u @ Z]


def _folds(codes: Any, fold: Any = row_state) -> Case:
    def truth(X: Array) -> list[Array]:
        drawn = (uniforms(0, "folds", 0, N, 1)[:, 0] * 3).astype(int) if codes is None else codes
        return [one for fold in range(3) for one in _cross_truth(X[drawn == fold])]

    return Case(
        f"FoldStates {'of groups' if codes is not None else 'by number'} {fold.__name__}",
        lambda: FoldStates(CrossMoments(SIDES, Moments(D)), 3, codes),
        fold,
        N,
        lambda s: [one for state in s.states for one in _cross_answer(state)],
        truth,
    )


def _stepped(lag: int, sums: bool, width: int = 0, codes: Any = None) -> Case:
    """Pairs of rows at a lag, inside trajectories and lines, however the rows are cut."""

    def truth(X: Array) -> list[Array]:
        X, t = X.astype("f8"), np.arange(N - lag)
        t = t if codes is None else t[codes[t] == codes[t + lag]]
        t = t[t % width != width - 1] if width else t
        level, steps = X[t] + X[t + lag] if sums else X, X[t + lag] - X[t]
        return [np.array(len(X)), np.array(len(t))] + [f(one) for one in (level, steps) for f in (_mean, scatter_of)]

    return Case(
        f"SteppedMoments {lag} {sums} {width} {codes is not None}",
        lambda: replace(SteppedMoments.of(D, lag, sums=sums, width=width or None), codes=codes),
        row_state,
        N,
        _stepped_answer,
        truth,
    )


def _stepped_answer(s: Any) -> list[Array]:
    each = [one for of in (s.level, s.steps) for one in (of.mean, full(of.scatter))]
    return [np.array(s.count), np.array(s.steps.count), *each]


def _profiles(X: Array) -> list[Array]:
    wide = np.abs(X).astype("f8")
    w = wide.sum(axis=1)
    wide /= w[:, None]
    mean = w @ wide / w.sum()
    return [np.array(len(X)), mean, (wide - mean).T @ (w[:, None] * (wide - mean)), np.array([w.sum(), w @ w])]


def _of_profiles(fold: Callable[..., Accumulator]) -> Case:
    return Case(
        f"ProfileMoments by {fold.__name__}",
        lambda: ProfileMoments.of(D),
        lambda template, X, *of: fold(template, np.abs(X), *of),
        N,
        lambda s: [
            np.array(s.count), s.moments.mean, full(s.moments.scatter), np.array(s.moments.weight_sums or (0.0, 0.0)),
        ],
        _profiles,
    )  # fmt: skip


def _mean(rows: Array) -> Array:
    return rows.sum(axis=0) / max(1, len(rows))


def _sample(fold: Any, row_bytes: int) -> Case:
    def answer(state: Any) -> list[Array]:
        rows = [piece.toarray() if isinstance(piece, csr_array) else piece for piece in state.rows()]
        return [np.concatenate([np.zeros((0, D)), *rows])]

    name = f"RowSample{' of CSR rows' if fold is sparse_state else ''}"
    return Case(name, lambda: RowSample(D, N, row_bytes), fold, N, answer, lambda X: [X.astype("f8")])


def _class_moments(whole: bool) -> Case:
    def truth(X: Array) -> list[Array]:
        wide = X.astype("f8")
        own = [wide[j == CODES] for j in range(3)]
        within = np.sum([scatter_of(rows) for rows in own], axis=0)
        return [
            np.bincount(CODES[CODES >= 0]),
            np.array([rows.mean(0) for rows in own]),
            within if whole else np.diag(within),
        ]

    return Case(
        f"ClassMoments whole={whole}",
        lambda: ClassMoments(D, 3, CODES, whole),
        row_state,
        N,
        lambda s: [s.counts, s.means, full(s.scatter) if whole else s.within],
        truth,
    )


def _labels(fold: Any) -> Case:
    classes = _class_moments(True)
    return Case(
        f"LabelStatistics{' of CSR rows' if fold is sparse_state else ''}",
        lambda: LabelStatistics(ClassMoments(D, 3, CODES), LeftProduct(D, V)),
        fold,
        N,
        lambda s: [*classes.answer(s.moments), s.cross.about(np.zeros(D)), s.cross.weight],
        lambda X: [*classes.truth(X), V.T @ X.astype("f8"), V.sum(0)],
    )


LANDMARKS, TRANSFORM = np.random.default_rng(9).standard_normal((4, D)), np.diag([0.1, 0.2, 0.05, -0.1])
FEATURES = LandmarkMap(kernels.Linear(), LANDMARKS, TRANSFORM, np.zeros(D))


def _features(X: Array) -> Array:
    return X.astype("f8") @ LANDMARKS.T @ TRANSFORM  # type: ignore[no-any-return]


def _left_by_features(X: Array) -> Array:
    excess: Array = (X.astype("f8") ** 2).sum(1) - (_features(X) ** 2).sum(1)
    return np.array([np.maximum(excess, 0.0).sum()])


def _best_rows(X: Array) -> list[Array]:
    wide = X.astype("f8")
    keys = np.log(-np.log1p(-uniforms(3, "race", 0, N, 1)[:, 0]))
    best = np.argsort(keys)[:5]
    return [best, wide[best], np.array([N, N])]


def _furthest(X: Array) -> list[Array]:
    ends = np.stack([X.T, -X.T]).astype("f8")
    rows = np.argsort(ends, axis=2, kind="stable")[:, :, :4]
    return [rows, np.take_along_axis(ends, rows, axis=2)]


def _totals(X: Array) -> list[Array]:
    sums = X.sum(1, "f8")
    return [*np.unique(sums[sums > 0], return_counts=True), np.median(sums[sums > 0])]


def _halves(X: Array) -> Array:
    """Rows of one number, 0 or 2."""
    return np.where(X[:, :1] > np.median(X[:, :1]), 2, 0).astype(X.dtype)


def _hit_state(template: Accumulator, X: Array, start: int, stop: int, cuts: list[int]) -> Accumulator:
    return state_about_zero(template, _halves(X), start, stop, cuts)


def _hits(X: Array) -> list[Array]:
    return [np.array([np.count_nonzero(_halves(X)[:, 0] == CODES), N])]


CASES = [
    Case("CrossMoments", lambda: CrossMoments(SIDES, Moments(D)), row_state, N, _cross_answer, _cross_truth),
    Case(
        "CrossMoments of CSR rows",
        lambda: CrossMoments(SIDES, Moments(D)),
        sparse_state,
        N,
        _cross_answer,
        _cross_truth,
    ),
    _folds(None),
    _folds((np.abs(CODES) % 3).astype(np.int32)),
    _folds((np.abs(CODES) % 3).astype(np.int32), sparse_state),
    _stepped(1, sums=False),
    _of_profiles(row_state),
    _of_profiles(sparse_state),
    _stepped(3, sums=True, codes=np.repeat([0, 1, 0, 2], [9, 2, 9, 3]).astype(np.int32)),
    _stepped(6, sums=False, width=5),
    Case(
        "KernelProduct",
        lambda: KernelProduct(N, K, V, squared=True),
        swept_state,
        N,
        lambda s: [s.product, s.squares, np.array(s.diagonal)],
        lambda X: [
            X.astype("f8") @ (X.astype("f8").T @ V),
            ((X.astype("f8") @ X.astype("f8").T) ** 2).sum(1),
            np.array((X.astype("f8") ** 2).sum()),
        ],
    ),
    *(case for fold in ("dense", "csr") for case in _chosen_rows(fold)),
    Case("Furthest", lambda: Furthest(D, 4), state_about_zero, N, lambda s: [s.rows, s.values], _furthest),
    *(
        Case(
            f"RowTotals {fold.__name__}",
            lambda: RowTotals(16 * N),
            fold,
            N,
            lambda s: [s.sums, s.weights, np.array(s.median)],
            _totals,
        )
        for fold in (state_about_zero, sparse_state)
    ),
    Case("Hits", lambda: Hits(CODES), _hit_state, N, lambda s: [np.array([s.hits, s.weight])], _hits),
    _class_moments(True),
    _class_moments(False),
    _fused(False),
    _fused(True),
    _fused(True, squared=False),
    _sample(state_about_zero, 4 * D),
    _sample(sparse_state, 8 * D),
    *(_dot_product(center, scale) for center in (True, False) for scale in (True, False)),
    Case(
        "Moments",
        lambda: Moments(D),
        row_state,
        N,
        lambda s: [np.array(s.count), s.mean, full(s.scatter)],
        lambda X: [np.array(len(X)), X.mean(0, "f8"), scatter_of(X)],
    ),
    Case(
        "Moments of CSR rows",
        lambda: Moments(D),
        sparse_state,
        N,
        lambda s: [np.array(s.count), s.mean, full(s.scatter)],
        lambda X: [np.array(len(X)), X.mean(0, "f8"), scatter_of(X)],
    ),
    Case(
        "Moments of weighted rows",
        lambda: Moments(D),
        weighted_state,
        N,
        lambda s: [np.array(s.count), s.mean, full(s.scatter), np.array(s.weight_sums or (0, 0))],
        _weighted,
    ),
    _fused(False, sparse_state),
    _fused(True, sparse_state),
    Case(
        "ColumnMoments",
        lambda: ColumnMoments(D),
        row_state,
        N,
        lambda s: [np.array(s.count), s.mean, s.squares],
        lambda X: [np.array(len(X)), X.mean(0, "f8"), np.diag(scatter_of(X))],
    ),
    Case(
        "StoredColumnMoments",
        lambda: StoredColumnMoments(D),
        sparse_state,
        N,
        lambda s: [np.array(s.count), s.mean, s.squares],
        lambda X: [np.array(len(X)), X.mean(0, "f8"), np.diag(scatter_of(X))],
    ),
    Case(
        "ObservedColumns",
        lambda: ObservedColumns(D),
        holed_state,
        N,
        lambda s: [s.totals, s.weights, s.means, np.array(s.missing_share)],
        _observed,
    ),
    Case(
        "ObservedBlocks",
        lambda: ObservedBlocks(N, D),
        column_state,
        D,
        lambda s: [(whole := s.whole(WEIGHTS)).totals, whole.weights, whole.means, np.array(whole.missing_share)],
        _observed,
    ),
    Case(
        "ObservedPairs",
        lambda: ObservedPairs(D),
        holed_state,
        N,
        lambda s: [s.mean, np.triu(unpack_upper(s.packed, D)), np.triu(unpack_upper(s.pairs, D))],
        _of_pairs,
    ),
    Case(
        "ExpectedScores",
        lambda: ExpectedScores(D, K, LATENT),
        holed_state,
        N,
        lambda s: [s.seconds, s.firsts, s.scores, s.squares, s.weights, np.array(s.likelihood)],
        _expected,
    ),
    Case(
        "LeftProduct",
        lambda: LeftProduct(D, V),
        row_state,
        N,
        lambda s: [s.about(np.zeros(D)), s.weight],
        lambda X: [V.T @ X.astype("f8"), V.sum(0)],
    ),
    Case(
        "LeftProduct of CSR rows",
        lambda: LeftProduct(D, V),
        sparse_state,
        N,
        lambda s: [s.about(np.zeros(D)), s.weight],
        lambda X: [V.T @ X.astype("f8"), V.sum(0)],
    ),
    _labels(row_state),
    _labels(sparse_state),
    *(_dot(center, scale) for center in (True, False) for scale in (True, False)),
    *(_products(center, scale) for center in (True, False) for scale in (True, False)),
    Case(
        "DotPanels",
        lambda: DotPanels(N, D),
        panel_state,
        N,
        lambda s: [mirror_upper(s.matrix())],
        lambda X: [X.astype("f8") @ X.astype("f8").T],
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
of_single_rows = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != "DotPanels"], ids=lambda case: case.name
)  # but for panels, which hold all rows that their pairs bring, shifted and widened already: see fold_panels


def assert_answers(case: Case, state: Accumulator, X: Array, tolerance: float) -> None:
    for found, truth in zip(case.answer(state), case.truth(X), strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance * max(np.abs(truth).max(), 1e-300))


def snapshot(state: Accumulator) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.to_arrays().items()}


def merge_anyhow(states: list[Accumulator], draw: Callable[[int], int]) -> Accumulator:
    """Merge adjacent states in a drawn order, checking that no merge changes its inputs."""
    while len(states) > 1:
        i = draw(len(states) - 1)
        left, right = states[i : i + 2]
        before = snapshot(left), snapshot(right)
        merged = left.merge(right)
        assert (snapshot(left), snapshot(right)) == before
        states[i : i + 2] = [merged]
    return states[0]


@every_case
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_split_and_any_merge_tree_equal_plain_numpy_and_merging_changes_no_input(case: Case, data: Any) -> None:
    X = normal(N, D, mean=2.0, seed=data.draw(st.integers(0, 3)), dtype="f8")
    cuts = sorted(data.draw(st.sets(st.integers(1, case.size - 1), max_size=case.size - 1)))
    groups = sorted(data.draw(st.sets(st.sampled_from(cuts))) if cuts else set())
    edges = [0, *groups, case.size]
    states = [case.fold(case.template(), X, a, b, [c for c in cuts if a < c < b]) for a, b in pairwise(edges)]
    whole = merge_anyhow(states, lambda most: data.draw(st.integers(0, most - 1)))
    assert_answers(case, whole, X, 1e-12)


@every_case
def test_a_state_travels_as_named_arrays_without_pickle(case: Case) -> None:
    state = case.fold(case.template(), normal(N, D), 0, case.size, [4])
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **state.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        back = case.template().bare().with_arrays(dict(archive))
    assert snapshot(back) == snapshot(state)
    for found, kept in zip(case.answer(back), case.answer(state), strict=True):
        np.testing.assert_array_equal(found, kept)


@of_single_rows
def test_a_state_of_no_rows_changes_nothing_it_is_merged_with(case: Case) -> None:
    X = normal(N, D, dtype="f8")
    state = case.fold(case.template(), X, 0, case.size, [])
    nothing = case.fold(case.template(), X, 0, 0, [])
    for merged in (state.merge(nothing), nothing.merge(state)):
        assert_answers(case, merged, X, 1e-13)


@every_case
def test_groups_in_one_process_share_nothing_that_one_of_them_changes(case: Case) -> None:
    """Shifts of one group in the sums of another would make bits depend on threads, and on where a run was stopped."""
    template = case.template()
    first, second = at_work(template, 0, 3), at_work(template, 3, 6)
    for one in fields(first):
        value = getattr(first, one.name)
        if one.compare and isinstance(value, dict | list | set):
            assert value is not getattr(second, one.name), one.name


@every_case
def test_state_bytes_is_what_the_state_holds_but_for_a_few_vectors(case: Case) -> None:
    state = case.fold(case.template(), normal(N, D), 0, case.size, [])
    held = sum(array.nbytes for array in state.to_arrays().values())
    vectors = 8 * (2 * D + K + 1)
    assert held <= case.template().state_bytes + vectors
    assert case.template().state_bytes <= held + vectors


# Features are computed about features.shift, which the fit chooses: their offsets are tested on fits. Sparse rows keep
# their zeros, so their products are about zero.
@pytest.mark.parametrize(
    ("case", "mean"),
    [(case, mean) for mean in (0.0, 1.0, 100.0, 1e4) for case in CASES
     if not case.name.startswith(("DotPanels", "LandmarkMoments"))
     and (mean <= 1 or not case.name.startswith("FusedProduct of CSR rows"))],
    ids=lambda one: getattr(one, "name", str(one)),
)  # fmt: skip
def test_an_offset_of_float32_data_costs_no_digits(case: Case, mean: float) -> None:
    """Tolerance: 4 eps of float32, relative to the answer for shifted accumulators."""
    X = normal(N, D, mean=mean)
    half = case.size // 2
    parts = [case.fold(case.template(), X, a, b, []) for a, b in ((0, half), (half, case.size))]
    state = parts[0].merge(parts[1])
    assert_answers(case, state, X, 4 * float(np.finfo(np.float32).eps))


@of_single_rows
@pytest.mark.parametrize("size", [1e19, 3e19, 1e-20, 1e-25])
def test_float32_values_whose_squares_overflow_or_vanish_are_added_all_the_same(case: Case, size: float) -> None:
    X = (normal(N, D, mean=0.5, dtype="f8") * size).astype("f4")
    with np.errstate(over="ignore", invalid="ignore"):  # as in a fold task
        state = case.fold(case.template(), X, 0, case.size, [])
    assert_answers(case, state, X, 1e-6)


def test_a_panel_rejects_single_blocks() -> None:
    block = prepare_block(normal(2, D), 0, np.zeros(D, "f4"), owned=False, nan_policy="raise", where="rows")
    with pytest.raises(NotImplementedError, match="filled from pairs of blocks: use add_pair"):
        DotPanels(2, D).update(block)


@pytest.mark.parametrize("one_value", [0.0, 7.25, -1e4])
def test_constant_columns_have_a_scatter_of_exactly_zero(one_value: float) -> None:
    X = np.full((N, D), one_value, "f4")
    state: Any = row_state(Moments(D), X, 0, 10, []).merge(row_state(Moments(D), X, 10, N, []))
    assert not state.scatter.any()
    np.testing.assert_array_equal(state.mean, np.full(D, one_value))


@every_case
def test_every_parameter_of_a_state_identifies_it(case: Case) -> None:
    state = case.template()
    parameters = {one.name for one in fields(state) if "shape" not in one.metadata and one.name[0] != "_"}
    described = state.describe()
    assert parameters - {"device"} <= described.keys()
    assert json.loads(json.dumps(described, default=str)) == json.loads(json.dumps(state.describe(), default=str))
    for name in [one for one in ("V", "codes") if isinstance(getattr(state, one, None), np.ndarray)]:
        array = getattr(state, name)
        changed = array + (1 if array.dtype.kind == "i" else 1e-9)
        assert replace(state, **{name: changed}).describe() != described


def test_every_accumulator_is_in_this_suite_and_has_a_tag_of_its_own() -> None:
    for module in pkgutil.walk_packages(bigpca.__path__, "bigpca."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    classes = [c for c in subclasses(Accumulator) if c.__module__.startswith("bigpca.") and not isabstract(c)]
    assert {c.__name__ for c in classes} - {type(case.template()).__name__ for case in CASES} == set()
    tags = [c.tag for c in classes]
    assert len(set(tags)) == len(tags)
    assert all("tag" in vars(c) for c in classes)


def subclasses(kind: type[Accumulator]) -> list[type[Accumulator]]:
    return [c for own in kind.__subclasses__() for c in (own, *subclasses(own))]


def test_a_product_with_a_dense_factor_allocates_what_it_says() -> None:
    rows, factor = np.ones((400, 50), "f4"), DenseFactor(np.ones((50, 30)))
    peak = traced_peak(lambda: factor.multiply(rows))
    said = factor.cost(BlockForm(50, len(rows), itemsize=4)).bytes
    assert said <= peak <= 1.1 * said


@pytest.mark.parametrize("sums", [False, True])
def test_steps_between_rows_allocate_no_more_than_they_say(sums: bool) -> None:
    rows, lag = normal(4000, 40, dtype="f8"), 300
    state: Any = at_work(SteppedMoments.of(40, lag, sums=sums), 0, 4000)
    blocks_of = [
        prepare_block(rows[i : i + 1000], i, np.zeros(40), owned=False, nan_policy="raise", where="rows")
        for i in range(0, 4000, 1000)
    ]
    state.update(blocks_of[0])  # whose products are scratch of the group
    peak = traced_peak(lambda: [state.update(block) for block in blocks_of[1:]])
    said = state.cost(BlockForm(40, 1000, itemsize=8)).bytes
    assert said / 2 <= peak <= said


@pytest.mark.parametrize("names", [[10, 20, 30], ["x", "y", "z"]])
def test_groups_keep_their_labels_however_many_states_of_a_read_merge(names: list[Any]) -> None:
    X, codes = np.random.default_rng(0).standard_normal((9, D)), np.tile(np.arange(3, dtype=np.int32), 3)
    template = FoldStates(Moments(D), 3, codes, labels=np.array(names))
    parts = [row_state(template, X, i, i + 3, []) for i in (0, 3, 6)]
    for whole in (parts[0].merge(parts[1]).merge(parts[2]), parts[0].merge(parts[1].merge(parts[2]))):
        assert whole.labels.tolist() == names
        assert [state.count for state in whole.states] == [3, 3, 3]


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_groups_whose_means_are_far_apart_keep_their_digits(form: str) -> None:
    rng, codes = np.random.default_rng(0), np.repeat(np.arange(3, dtype=np.int32), 200)
    X = rng.standard_normal((600, D)) + 1e6 * codes[:, None] + 1.0
    of = CrossMoments(SIDES, Moments(D)) if form == "csr" else Moments(D)  # which takes no sparse rows
    fold: Any = sparse_state if form == "csr" else row_state
    for order in (np.arange(600), rng.permutation(600)):
        state: Any = fold(FoldStates(of, 3, codes[order]), X[order], 0, 600, [250])
        for g, one in enumerate(state.states):
            moments, own = getattr(one, "moments", one), X[codes == g]
            np.testing.assert_allclose(moments.mean, own.mean(axis=0), rtol=1e-15, atol=1e-10)
            variances = packed_diagonal(moments.packed, D) / 200
            np.testing.assert_allclose(variances, own.var(axis=0), rtol=1e-10)
