"""PCA by the covariance matrix: one pass of moments, one d x d eigenproblem (tutorial, algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bigpca.estimators.linear.spectrum import Settings, Spectrum, solve_moments_state
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.fold import fold
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources, peak_bytes


def model_bytes(k: int, d: int, state: int, keep: int) -> int:
    """Bytes of a saved model: components, mean, variances, and the state where it is kept."""
    return 8 * (k * d + 2 * d + 2 * k) + (state if state <= keep else 0)


def fold_memory(rows: RowInput, state_bytes: int, product: int, flops: float) -> tuple[int, int, int]:
    """Return (peak bytes of a thread, block rows, groups) of a fold over rows with that state, product and work."""
    layout = rows.layout(state_bytes)
    block_rows = min(layout.slab_rows, layout.read_rows)
    copied = rows.copied_row_bytes(product_dtype(rows.dtype, flops)) * block_rows
    read = layout.read_rows * rows.n_columns * rows.dtype.itemsize
    return peak_bytes(read, copied, product, state_bytes), block_rows, len(layout.groups)


def plan_covariance(rows: RowInput, settings: Settings, resources: Resources) -> Plan:
    """Cost of the covariance route: one read, n d^2 flops for the symmetric product, about 4/3 d^3 for the solve."""
    n, d = rows.n_rows, rows.n_columns
    moments = Moments(d)
    peak, block_rows, groups = fold_memory(
        rows, moments.state_bytes, moments.product_bytes, float(n) * moments.flops_per_row
    )
    k = settings.wanted(n, d)
    reads = 1 + int(rows.counted)
    return Plan(
        solver="covariance",
        reason=f"one read and a {d} x {d} matrix",
        passes=reads,
        bytes_read=reads * n * d * rows.dtype.itemsize,
        flops=float(n) * moments.flops_per_row + 4 / 3 * d**3 + 2.0 * d * d * k,
        tasks=2 * groups + 1,
        state_bytes=moments.state_bytes,
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=model_bytes(k, d, moments.state_bytes, settings.keep_state_bytes),
        resources=resources,
    )


def describe_covariance(rows: RowInput) -> dict[str, Any]:
    """Fingerprint: the moments depend on the input alone, so a checkpoint serves any n_components, scale or centring."""
    return {"computes": "moments", "input": rows.describe()}


def run_covariance(rows: RowInput, settings: Settings, options: RunOptions) -> Spectrum:
    """Fit in one pass."""
    finish = partial(solve_moments_state, settings=settings)
    spectrum: Spectrum = fold(
        rows, {"moments": Moments(rows.n_columns)}, finish, name="moments", number=1, options=options
    )
    return spectrum


def fold_moments(rows: RowInput, options: RunOptions, *, before: int = 0) -> tuple[Moments, int]:
    """Return the moments of X and the number of omitted rows: the pass of ``partial_fit``, after ``before`` rows.

    Blocks are multiplied in the precision of one pass over all of these rows; few rows in memory make one group, for a state
    of each of several would cost more than they do.
    """
    template = Moments(rows.n_columns)
    layout = rows.layout(template.state_bytes)
    if rows.in_memory and layout.n_rows * layout.row_bytes <= 2 * template.state_bytes:
        layout = replace(layout, groups=(range(len(layout.reads)),), segments=(range(1),))
    dtype = product_dtype(rows.dtype, float(before + rows.n_rows) * template.flops_per_row)
    moments, omitted = fold(
        rows, {"moments": template}, _take_moments, name="moments", number=1, options=options, layout=layout,
        dtype=dtype,
    )  # fmt: skip
    return moments, int(omitted)


def _take_moments(state: Any) -> tuple[Moments, int]:
    return state.parts["moments"], state.omitted
