"""Moments of Nyström features in one read of X, and the blocks of kernel values that they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, cast

import numpy as np

from bigpca import csr
from bigpca.arrays import Array, DType, Integers, Matrix, Vector
from bigpca.blas import made_ahead
from bigpca.costs import BlockForm, Work
from bigpca.csr import form_of
from bigpca.devices import Namespace, device_of_solve, dtype_of, gram_bytes, host_array
from bigpca.engine.layout import MIB
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.kernels.base import FIXED_BYTES, Kernel, reject_overflow
from bigpca.kernels.custom import reject_asymmetric
from bigpca.passes.accumulators.all_pairs import entry_precision
from bigpca.passes.accumulators.base import KEPT, Accumulator, broadcast, kept
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import Block
from bigpca.passes.reading.row_maps import MapStep, NumberedMap
from bigpca.solvers.certificates import rounding_slack

# Precomputed kernels identify rows by absolute number, not by content. Landmarks, whose numbers are not consecutive,
# are then prepared one by one.
TILE_BYTES = 16 * MIB
# eps in three sums of a matrix product whose terms are all equal: up to 35 in each, measured for n to 8192.
ALIKE = 128.0
HELD_TILES = 8  # of features that idle threads make at a time
TILE_ROWS = 4096
TILE_BYTES_LANDMARK_MOMENTS = 4 * MIB  # of kernel values in float32 that are made at a time


def tile_rows(row_bytes: int) -> int:
    """Return the rows evaluated at a time: 16 MiB of them, at most 4,096 and at least one.

    >>> tile_rows(1 << 14), tile_rows(1), tile_rows(1 << 30)
    (1024, 4096, 1)
    """
    return max(1, min(TILE_ROWS, TILE_BYTES // max(1, row_bytes)))


def prepare_tile(kernel: Kernel, block: Block, start: int, stop: int, shift: Vector | None) -> object:
    """Prepare rows ``start:stop`` of a block as the first argument of a kernel.

    Raises
    ------
    ValueError
        If the kernel identifies rows by number, and rows with missing values were omitted between them.
    """
    rows, values = block.rows[start:stop], block.values[start:stop]
    _check_consecutive(kernel, rows)
    return kernel.prepare(block.device.rows(values), shift, int(rows[0]))


def prepare_landmarks(kernel: Kernel, rows: Values, numbers: Integers, shift: Vector | None) -> object:
    """Prepare landmarks (m, d), rows ``numbers`` (m,) of X, for :func:`landmark_block`."""
    if kernel.needs_rows:
        return kernel.prepare(rows, shift)
    return [kernel.prepare(row[None], shift, int(i)) for row, i in zip(rows, numbers, strict=True)]


def compared_bytes(tile: int, d: int, itemsize: int, m: int) -> int:
    """Return what comparing a tile of rows of d columns with m landmarks takes of a device."""
    # Landmarks, and a tile with what its squares take; or both, and as factors in float64, and kernel values, features
    # and two copies. Squares.
    products = (tile + m) * (d * itemsize + 8 * (d + 9)) + 32 * tile * m
    return max(24 * tile * d + m * d * itemsize, products) + 24 * (tile + m)


def landmark_block(kernel: Kernel, A: object, landmarks: object) -> Array:
    """Return ``k(A, L)`` (a, m) of a prepared block and the result of :func:`prepare_landmarks`."""
    if kernel.needs_rows:
        return kernel.block(A, landmarks)
    return np.hstack([kernel.block(A, one) for one in _one_by_one(landmarks)])


def _check_consecutive(kernel: Kernel, rows: Integers) -> None:
    if not kernel.needs_rows and rows[-1] - rows[0] + 1 != len(rows):
        raise ValueError(
            f"rows between {rows[0]} and {rows[-1]} were left out (for missing values, weight 0 or no label), but "
            f"{kernel} identifies rows by number and requires a complete matrix. Remove those rows and columns from it "
            "first."
        )


def check_mirrored(
    kernel: Kernel, A: object, landmarks: object, block: Array, rows: Integers, numbers: Integers
) -> None:
    """Reject a block ``k(A, L)`` of rows of a fit that is not ``k(L, A)'``.

    Raises
    ------
    ValueError
        For a precomputed matrix, whose landmarks hold both entries; also if rows between the first and the last lack.
    """
    if not kernel.needs_rows:
        _check_consecutive(kernel, rows)
        mirrored = np.vstack([kernel.block(one, A) for one in _one_by_one(landmarks)]).T
        reject_asymmetric(block, mirrored, rows, numbers)


def cross_block(kernel: Kernel, A: object, landmarks: object) -> Array:
    """Return ``k(A, L)`` (a, m) where both are results of :func:`prepare_landmarks`; reject values beyond float64."""
    if kernel.needs_rows:
        K = host_array(kernel.block(A, landmarks))
    else:
        K = np.vstack([landmark_block(kernel, one, landmarks) for one in _one_by_one(A)])
    reject_overflow(K, "the kernel matrix of landmarks")
    return K


def square_block(kernel: Kernel, rows: Array, numbers: Integers, shift: Vector | None) -> Matrix:
    """Return ``k(L, L)`` (m, m) in float64 for rows of any precision, because it is factorised; many on a device."""
    device = kernel.place(device_of_solve(len(numbers))) if form_of(rows).shifts else HOST
    with device.precise():
        A = prepare_landmarks(kernel, device.rows(rows.astype(np.float64)), numbers, shift)
        K_mm = cross_block(kernel, A, A)
    if not kernel.needs_rows:
        reject_asymmetric(K_mm, K_mm.T, numbers, numbers)
    return (K_mm + K_mm.T) / 2


def diagonal_of(kernel: Kernel, A: object) -> Vector:
    """Return ``k(x, x)`` (m,) of the result of :func:`prepare_landmarks`."""
    if kernel.needs_rows:
        return kernel.diagonal_of(A)
    return np.concatenate([kernel.diagonal_of(one) for one in _one_by_one(A)])


def _one_by_one(landmarks: object) -> list[object]:
    """Return landmarks that :func:`prepare_landmarks` prepared one by one."""
    return cast("list[object]", landmarks)


@dataclass(frozen=True)
class LandmarkMap(NumberedMap):
    """Features ``B = k(X, L) T`` (n, r) of landmarks L (m, d).

    Attributes
    ----------
    kernel : Kernel
    landmarks : ndarray of shape (m, d)
    transform : ndarray of shape (m, r); T
        ``T'K_mm T = I``.
    shift : ndarray of shape (d,)
    indices : ndarray of shape (m,), or None
        Row numbers of the landmarks, for kernels that identify rows by number.
    """

    kernel: Kernel
    landmarks: Array
    transform: Matrix
    shift: Vector
    indices: Integers | None = None
    _prepared: dict[object, tuple[object, Array, Array]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def planned(cls, kernel: Kernel, m: int, d: int) -> LandmarkMap:
        """Return such a map of broadcast zeros, which prices states and tiles without their memory."""
        return cls(kernel, np.broadcast_to(np.float32(0), (m, d)), np.broadcast_to(0.0, (m, m)), np.zeros(d))

    def block(self) -> Matrix:
        """Return K_mm (m, m) in float64."""
        return square_block(self.kernel, self.landmarks, self.numbers, self.shift)

    @cached_property
    def amplification(self) -> float:
        """The factor by which T magnifies the rounding of kernel values, relative to ``sqrt(k(x, x) k(l, l))``.

        Largest column of ``diag(K_mm)^(1/2) T``: 1 over the root of the smallest eigenvalue kept of the scaled K_mm.
        """
        prepared = prepare_landmarks(self.kernel, self.landmarks.astype(np.float64), self.numbers, self.shift)
        lengths = np.sqrt(diagonal_of(self.kernel, prepared))
        return max(1.0, float(np.linalg.norm(lengths[:, None] * self.transform, axis=0).max()))

    def rounding(self, diagonal: float, precision: float) -> float:
        """Bound what rounding changes in an eigenvalue, where k(x, x) of all rows sum to ``diagonal``.

        T magnifies the rounding of kernel values. It does not magnify the rounding of sums over landmarks and rows, but
        that does not cancel if rows are alike.
        """
        return rounding_slack(diagonal, precision=precision * self.amplification) + ALIKE * precision * diagonal

    @property
    def step(self) -> MapStep:
        """The map from rows to the features, in tiles."""
        m, T = len(self.landmarks), self.transform
        flops = int(m * self.kernel.flops_per_entry(self.landmarks.shape[1])) + 2 * T.size
        return MapStep(self, T.shape[1], flops, self.tile_rows)

    def apply_at(self, rows: Array, numbers: Integers, where: str) -> Array:
        """Return the features (b, r)."""
        A, landmarks = self.kernel.prepare(rows, self.shift, int(numbers[0])), self.prepare(rows.dtype)[0]
        K = landmark_block(self.kernel, A, landmarks)
        check_mirrored(self.kernel, A, landmarks, K, numbers, self.numbers)
        B: Array = K @ self.transform.astype(K.dtype, copy=False)
        return B

    def output_dtype(self, dtype: DType) -> DType:
        """That of the rows."""
        return dtype

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The memory of one tile and of the prepared landmarks."""
        return self.working_bytes(d, rows), 0

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_prepared": {}}

    def prepare(self, dtype: DType, device: Namespace = HOST) -> tuple[object, Array, Array]:
        """Return the prepared landmarks, the transform and the shift, on a device; the groups of a process share
        them.
        """
        if (dtype, device) not in self._prepared:
            landmarks, shift = device.rows(self.landmarks.astype(dtype, copy=False)), device.put(self.shift)
            transform = device.put(self.transform)  # in float64: tiles round it to their precision
            prepared = prepare_landmarks(self.kernel, landmarks, self.numbers, shift)
            self._prepared[dtype, device] = prepared, transform, shift
        return self._prepared[dtype, device]

    @property
    def numbers(self) -> Integers:
        """The row numbers of the landmarks; 0 to m - 1 for landmarks that are not rows."""
        return np.arange(len(self.landmarks)) if self.indices is None else self.indices

    @property
    def tile_rows(self) -> int:
        """Rows mapped at a time: about 2 MiB of kernel values in float32."""
        return max(256, min(TILE_ROWS, TILE_BYTES_LANDMARK_MOMENTS // (4 * max(1, len(self.landmarks)))))

    def tile_rows_on(self, device: Namespace) -> int:
        """The same where they are: on a device, no cache has to hold them."""
        return device.tile_rows(self.tile_rows, 4 * max(1, len(self.landmarks)), 256)

    def working_bytes(self, d: int, rows: int) -> int:
        """Return the memory of one tile of a block of so many rows (kernel values, features, prepared rows) and of the
        prepared landmarks, in float64."""
        kernel, m, tile = self.kernel, len(self.landmarks), min(self.tile_rows, rows)
        entries = tile * m * (kernel.entry_bytes(8) + 16)
        return FIXED_BYTES + entries + (tile + m) * (kernel.prepared_bytes(d, 8) + 8 * d) + 8 * m * m

    def cost(self, rows: BlockForm) -> Work:
        """Return the memory of one tile of rows and of the landmarks, in float64, and the operations per row."""
        kernel, m, d = self.kernel, len(self.landmarks), rows.columns
        work = Work(0, m * kernel.entry_flops(rows)) + Work(0, 2.0 * self.transform.size)  # k(x, L), and times T
        strips, taken = rows.taken(kernel.accepts_csr)
        if not taken.sparse:
            return Work(self.working_bytes(d, rows.rows) + strips) + work
        entries = self.tile_rows * m * (kernel.entry_bytes(8) + 16 + 8)
        own = 3 * self.tile_rows * math.ceil(12 * rows.values + 16) + csr.product_bytes(rows, m)
        landmarks = m * (kernel.prepared_bytes(d, 8) + 16 * d) + 8 * m * m
        return Work(FIXED_BYTES + entries + own + landmarks) + work


@dataclass
class LandmarkMoments(Accumulator):
    """Moments of the features, and the residuals of ``k(x, x)``, weighted if the rows are.

    Attributes
    ----------
    n_features : int
        d.
    features : LandmarkMap
        A broadcast value: None in closed states, and in templates being sent.
    moments : Moments
        Moments of ``B`` about the mean of all rows.
    diagonal, residual : float
        ``sum_i k(x_i, x_i)`` and ``sum_i max(k(x_i, x_i) - |B_i|^2, 0)``: the traces of K and of ``K - B B'``.
    evaluations : int
        Kernel evaluations so far.
    precision : float
        :func:`entry_precision` of the coarsest tile; 0 before the first.
    """

    tag: ClassVar[str] = "LandmarkMoments"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "weights"})
    lives_there: ClassVar[bool] = True
    shared_field: ClassVar[str | None] = "features"

    n_features: int
    features: LandmarkMap | None
    moments: Moments = field(metadata=KEPT)
    diagonal: float = kept(default=0.0)
    residual: float = kept(default=0.0)
    evaluations: int = kept(default=0)
    precision: float = kept(default=0.0, merge=max)
    _shift: Vector | None = field(default=None, repr=False)  # of the features

    @classmethod
    def of(cls, n_features: int, features: LandmarkMap) -> LandmarkMoments:
        """Return a template."""
        return cls(n_features, features, Moments(features.transform.shape[1]))

    def update(self, block: Block) -> None:
        features = broadcast(self.features)
        for part in block.taken(features.kernel.accepts_csr):
            self._add_block(part, features)

    def _add_block(self, block: Block, features: LandmarkMap) -> None:
        features.prepare(block.values.dtype, block.device)  # once, before threads that share them
        step = features.tile_rows_on(block.device)
        tiles = [slice(i, i + step) for i in range(0, block.count, step)]
        # Those of the first tile are about their own mean, as are then all others.
        some = (tiles, []) if self._shift is not None else (tiles[:1], tiles[1:])
        for few in some:
            compared = made_ahead(partial(_compared, block, features, self._shift), few, block.device.ahead(HELD_TILES))
            for tile, (made,) in zip(few, compared, strict=True):
                with block.device.precise():
                    self._add(*made, block.weights_at(tile))

    def _add(self, own: Block, diagonal: Vector, squares: Vector, precision: float, weights: Vector | None) -> None:
        """Add the features of a tile."""
        # k(x, x) - |b(x)|^2, what the features miss of x: its sum bounds the error of every eigenvalue.
        left = np.maximum(diagonal - squares, 0.0)
        self.diagonal += float(diagonal.sum() if weights is None else weights @ diagonal)
        self.residual += float(left.sum() if weights is None else weights @ left)
        self.evaluations += own.count * len(broadcast(self.features).landmarks)
        self.precision = max(self.precision, precision)
        self._shift = own.shift
        self.moments.update(own)

    def there(self, device: Namespace) -> LandmarkMoments:
        return super().there(broadcast(self.features).kernel.place(device))

    def cost(self, rows: BlockForm) -> Work:
        own = self.moments.cost(BlockForm(self.moments.n_features, rows.rows))
        return own if self.features is None else own + self.features.cost(rows)

    def device_bytes(self, rows: BlockForm) -> int:
        features = broadcast(self.features)
        tile = min(features.tile_rows_on(self.device), rows.rows)
        held = compared_bytes(tile, rows.columns, rows.itemsize, len(features.landmarks))
        return held + 8 * features.transform.size + gram_bytes(self.moments.n_features, tile, rows.itemsize)


def _compared(
    block: Block, features: LandmarkMap, about: Vector | None, tile: slice[int, int, None]
) -> Iterator[tuple[Block, Vector, Vector, float]]:
    """Yield the features of a tile, which are rows of their own about the shift of the first ones; ``k(x, x)``,
    ``|B_i|^2``, and the precision of the kernel's entries."""
    rows, numbers, device, kernel = block.values[tile], block.rows[tile], block.device, features.kernel
    landmarks, T, shift = features.prepare(rows.dtype, device)
    A = kernel.prepare(device.rows(rows), shift, int(numbers[0]))
    K = landmark_block(kernel, A, landmarks)
    check_mirrored(kernel, A, landmarks, K, numbers, features.numbers)
    # Rounding of kernel values enters B at most by this; bounds allow for it.
    error = kernel.entry_error(A, landmarks) if kernel.needs_rows else 0.0
    B, squares = features_with_squares(K, T, device)
    own = Block.about(device.rows(B), numbers, about, device).weighted(block.weights_at(tile))
    yield own, kernel.diagonal_of(A), squares, entry_precision(dtype_of(B), error)


def features_with_squares(K: Array, T: Array, device: Namespace) -> tuple[Array, Vector]:
    """Return the features ``B = K T`` (b, r) in the precision of K (b, m), on the device of both, and ``|B_i|^2`` (b,)
    in float64.
    """
    B: Array = K @ device.floats(T, dtype_of(K))
    return B, device.row_squares(B)
