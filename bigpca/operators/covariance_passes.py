"""The reads of a covariance operator, as a fit declares them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from bigpca import csr
from bigpca.costs import PassCost, Times
from bigpca.operators.products import PROBES
from bigpca.passes.accumulators.factors import DenseFactor
from bigpca.passes.accumulators.fused_product import FusedProduct
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.fold import row_pass, shift_pass
from bigpca.passes.reading.layout import Layout
from bigpca.passes.rows import RowInput
from bigpca.passes.sampling import sample_layout, sample_runs, sample_size
from bigpca.solvers.dual import axes_bytes


@dataclass(frozen=True)
class CovariancePasses:
    """The passes of a covariance operator, as a fit declares them.

    Attributes
    ----------
    product : PassPlan
        One multiplication.
    sample : PassPlan or None
        Reads the rows from which an iteration starts; None if there are too few rows, or no sample is used.
    first : PassCost
        Reads the rows that define the shift if there is no sample.
    """

    product: PassPlan
    sample: PassPlan | None
    first: PassCost

    @classmethod
    def of(
        cls, rows: RowInput, columns: int, times: Times, *, most: int = 0, sampled: int = 0, seed: int = 0,
        driver_bytes: int = 0,
    ) -> CovariancePasses:  # fmt: skip
        """Declare products with ``columns`` columns, or at most ``most``, and the probes.

        They follow a sample for ``sampled`` columns, unless that is 0.
        """
        n, d = rows.n_rows, rows.n_columns
        typical, largest = (_product_state(d, width + PROBES) for width in (columns, max(columns, most)))
        form = rows.mapped_form()
        work = 2 * n * csr.product_flops(form, columns)
        product = row_pass(
            rows, "product", [largest], cut_bytes=typical.state_bytes, work=work * times.typical,
            times=times, refinable=True, driver_bytes=driver_bytes,
        )  # fmt: skip
        itemsize, row_bytes = product.dtype.itemsize, rows.held_row_bytes(product.dtype)
        each = typical.cost(replace(form, itemsize=itemsize))
        loops = float(n) * (each.loops + rows.prepared_work(itemsize).loops)
        product = replace(product, flops=n * each.flops, products=n * each.products, loops=loops)
        wanted = sample_size(n, math.ceil(row_bytes), sampled) if sampled else 0
        sample = None
        if wanted:
            sample = row_pass(
                rows, "sample", [RowSample(d, wanted, row_bytes)], cut_bytes=0, work=0.0, dtype=product.dtype,
                layout=sample_layout(rows.layout(0), sample_runs(n, wanted, seed)), collected=True,
                finish_bytes=math.ceil(wanted * row_bytes) + axes_bytes(wanted, d, sampled, itemsize),
            )  # fmt: skip
        return cls(product, sample, shift_pass(rows, cls.first_layout(rows, product)))

    @staticmethod
    def first_layout(rows: RowInput, product: PassPlan) -> Layout:
        """Return the layout of the first chunk's rows alone."""
        count = min(next((c for c in rows.row_chunks if c), 0), product.layout.slab_rows)
        return replace(product.layout, reads=((0, count),))

    @property
    def costs(self) -> tuple[PassCost, ...]:
        """All passes; the first rows are read without a sample, or if it has too few complete rows."""
        if self.sample is None:
            return (self.first, self.product)
        return (self.sample, self.first.repeated(Times(0, 1)), self.product)


def _product_state(d: int, width: int) -> FusedProduct:
    """Return the state of a product with ``width`` columns, from which its size is computed."""
    return FusedProduct.of(d, DenseFactor(np.broadcast_to(np.float32(0), (d, width))), by_driver=True)
