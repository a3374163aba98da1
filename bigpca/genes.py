"""Highly variable genes of single cells, by the flavours of ``scanpy.pp.highly_variable_genes``, in reads by parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import norm

from bigpca.arrays import Vector
from bigpca.data.sparse import with_values
from bigpca.errors import required
from bigpca.passes.accumulators.moments import StoredColumnMoments
from bigpca.passes.engine.events import ProgressArgument
from bigpca.passes.reading.blocks import Values
from bigpca.passes.reading.row_maps import Float64Map, MapStep, RowMap
from bigpca.passes.rows import Rows
from bigpca.quality.measurement import read_once

if TYPE_CHECKING:
    import pandas as pd

FLAVORS = ("seurat", "cell_ranger", "seurat_v3")
NO_MEAN = 1e-12  # in place of the mean of a gene that no cell expresses, as in scanpy


@dataclass(frozen=True)
class Expm1(Float64Map):
    """``exp(x) - 1`` of each value: normalised counts from their logarithms."""

    takes_csr: ClassVar[bool] = True
    keeps_csr: ClassVar[bool] = True

    def apply(self, rows: Values, where: str) -> Values:
        """Return the counts; for sparse rows, those of the stored values."""
        sparse = isinstance(rows, csr_array)
        counts = np.expm1(rows.data if sparse else rows, dtype=np.float64)
        return with_values(rows, counts) if sparse else counts

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The counts, in float64."""
        return 8 * rows * d, 0


@dataclass(frozen=True)
class AtMost(Float64Map):
    """The smaller of each value and the limit of its column, which is not negative.

    Attributes
    ----------
    limits : ndarray of shape (d,)
    """

    takes_csr: ClassVar[bool] = True
    keeps_csr: ClassVar[bool] = True

    limits: Vector

    def apply(self, rows: Values, where: str) -> Values:
        """Return the limited values; of sparse rows, the stored ones."""
        if isinstance(rows, csr_array):
            return with_values(rows, np.minimum(rows.data, self.limits[rows.indices], dtype=np.float64))
        return np.minimum(rows, self.limits, dtype=np.float64)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The limited values, and the limits of each, in float64."""
        return 16 * rows * d, 0


@dataclass(frozen=True)
class GeneReads:
    """The reads of the cells that find moments of genes.

    Attributes
    ----------
    rows : Rows
        Of cells, with all genes.
    memory_limit, progress : as in a fit
    """

    rows: Rows
    memory_limit: int | str | None = None
    progress: ProgressArgument = None

    def moments(self, name: str, *maps: RowMap) -> tuple[int, Vector, Vector]:
        """Return the number of cells, and the mean and the squared deviations of each gene, in one read."""
        d = self.rows.n_columns
        mapped = self.rows.mapped(*(MapStep(one, d, 4 * d) for one in maps))
        found = read_once(
            mapped,
            StoredColumnMoments(d),
            name,
            memory_limit=self.memory_limit,
            progress=self.progress,
            dtype=np.dtype(np.float64),
            about_zero=True,  # the smooth function of the means jumps where two of them differ by rounding
        )
        if (found.mean < 0).any():
            gene = int(np.argmin(found.mean))
            raise ValueError(
                f"gene {gene} has mean {found.mean[gene]:g}, but counts, or logarithms of 1 + counts, were expected. "
                "Were the genes scaled before? Pass a layer from before that."
            )
        if found.count < 2:
            raise ValueError(f"variances of genes need at least 2 cells, and there are {found.count}.")
        return found.count, found.mean, np.maximum(found.squares, 0)


def by_dispersion(mean: Vector, variance: Vector, n_top_genes: int, flavor: str, n_bins: int) -> pd.DataFrame:
    """Return means, dispersions, those compared with genes of a similar mean, and whether a gene is highly variable."""
    import pandas as pd  # which AnnData needs

    mean = np.where(mean == 0, NO_MEAN, mean)
    dispersion, edges = variance / mean, np.empty(0)
    if flavor == "seurat":
        with np.errstate(divide="ignore"):
            dispersion = np.where(dispersion == 0, np.nan, np.log(dispersion))
        mean = np.log1p(mean)
    else:
        edges = np.unique([-np.inf, *np.percentile(mean, np.arange(10, 105, 5)), np.inf])
    genes = pd.DataFrame({"means": mean, "dispersions": dispersion})
    bins = pd.cut(genes["means"], bins=n_bins if flavor == "seurat" else edges)
    alike = genes["dispersions"].groupby(bins, observed=True)
    if flavor == "seurat":
        centre, spread = alike.transform("mean"), alike.transform("std")
        alone = spread.isna()  # the only gene of its bin: 1, as in scanpy
        centre, spread = centre.mask(alone, 0.0), spread.where(~alone, centre)
    else:
        centre = alike.transform("median")
        away = (genes["dispersions"] - centre).abs()
        spread = away.groupby(bins, observed=True).transform("median") / norm.ppf(0.75)
    genes["dispersions_norm"] = (genes["dispersions"] - centre) / spread  # NaN if all of a bin are alike
    known = np.sort(genes["dispersions_norm"].dropna())[::-1]
    if not len(known):
        raise ValueError(
            "no gene differs from the others of its bin, so none is highly variable: more cells or genes were expected."
        )
    genes["highly_variable"] = genes["dispersions_norm"] >= known[min(n_top_genes, len(known)) - 1]
    return genes


def by_clipped_variance(reads: GeneReads, n_top_genes: int, span: float) -> pd.DataFrame:
    """Return means, variances, those of standardised and clipped counts, and the rank by these; two reads."""
    import pandas as pd  # which AnnData needs

    loess = required("skmisc.loess", 'flavor = "seurat_v3"', "scikit-misc").loess
    n, mean, squares = reads.moments("moments of the genes")
    variance, expected = squares / (n - 1), np.zeros(len(mean))
    varies = variance > 0
    trend = loess(np.log10(mean[varies]), np.log10(variance[varies]), span=span, degree=2)
    trend.fit()
    expected[varies] = trend.outputs.fitted_values
    deviation = np.sqrt(10**expected)
    _, clipped, left = reads.moments("moments of the clipped counts", AtMost(deviation * np.sqrt(n) + mean))
    compared = (left + n * (clipped - mean) ** 2) / ((n - 1) * deviation**2)
    rank = np.argsort(np.argsort(-compared, kind="stable"), kind="stable").astype(np.float32)
    highly = rank < n_top_genes
    return pd.DataFrame({
        "highly_variable": highly, "highly_variable_rank": np.where(highly, rank, np.float32(np.nan)),
        "means": mean, "variances": variance, "variances_norm": compared,
    })  # fmt: skip
