"""What reads require of rows, checked before any is read: any order, dense values, states that use their weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.rows import RowInput


def check_states(rows: RowInput, states: Iterable[Accumulator]) -> None:
    """Reject weighted rows if a state cannot use their weights.

    Raises
    ------
    TypeError
        Names the states.
    """
    reject_weights(rows, sorted({state.tag for state in states if "weights" not in state.accepts}))


def reject_weights(rows: RowInput, states: Sequence[str], because: str = "") -> None:
    """Reject weighted rows for states that cannot use their weights, if there are any such states.

    ``because`` is a clause that says why they cannot.

    Raises
    ------
    TypeError
        Names the states.
    """
    if states and rows.weights is not None:
        why = f": {because}" if because else ""
        raise TypeError(
            f"the rows have weights (sample_weight), which {', '.join(states)} cannot use{why}. Fit without "
            "weights, or by a method that can use them: PCA, ApproximatePCA, NystromKernelPCA with given "
            "landmarks, or a supervised linear model."
        )


def check_any_order(rows: RowInput, what: str) -> None:
    """Reject rows that can be read in one order only.

    Raises
    ------
    ValueError
    """
    if rows.in_order:
        raise ValueError(
            f"{what} reads rows in any order, but batches come in one. Write them with bigpca.FeatureWriter and "
            'pass the store, or use a solver that reads the rows once: PCA(solver="covariance"), ApproximatePCA, '
            "NystromKernelPCA with given landmarks."
        )


def check_dense(rows: RowInput, what: str) -> None:
    """Reject sparse rows, which ``what`` cannot read.

    Raises
    ------
    TypeError
    """
    if rows.sparse:
        raise TypeError(
            f"X is sparse, and {what} requires dense rows. Use a method that reads sparse rows, such as "
            'PCA(solver="covariance"), or pass X.toarray() if that fits in memory (of a Dask array, '
            "X.map_blocks(lambda block: block.toarray()))."
        )
