"""Highly variable genes of single cells, by the flavours of ``scanpy.pp.highly_variable_genes``, in reads by parts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from scipy.stats import norm

from bigpca.arrays import Integers, Vector, tied
from bigpca.csr import KEPT, Forms, form_of
from bigpca.data.checks import LARGEST_EXACT
from bigpca.data.sparse import in_blocks
from bigpca.engine.events import ProgressArgument
from bigpca.errors import required
from bigpca.estimators.shared.opening import placed_in_folds, read_once
from bigpca.forms import Values
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.folds import FoldStates
from bigpca.passes.accumulators.kept_rows import RowTotals
from bigpca.passes.accumulators.moments import StoredColumnMoments
from bigpca.passes.reading.row_maps import (
    Float64Map,
    GeneMap,
    Learning,
    Log1p,
    MapStep,
    NormalizeTotal,
    NumberedMap,
    PearsonResiduals,
    RowMap,
    RowPreprocessor,
)
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Lesson, totals_lesson

if TYPE_CHECKING:
    import pandas as pd

FLAVORS = ("seurat", "cell_ranger", "seurat_v3")
RESIDUALS = "pearson_residuals"  # a flavour that finds genes, and no components
COEFFICIENTS = 3  # of a parabola
NO_MEAN = 1e-12  # in place of the mean of a gene that no cell expresses, as in scanpy


@dataclass(frozen=True)
class Expm1(Float64Map):
    """``exp(x) - 1`` of each value: normalised counts from their logarithms."""

    forms: ClassVar[Forms] = KEPT

    def apply(self, rows: Values, where: str) -> Values:
        """Return the counts; for sparse rows, those of the stored values."""
        return form_of(rows).mapped(rows, partial(np.expm1, dtype=np.float64))

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The counts, in float64."""
        return 8 * rows * d, 0


@dataclass(frozen=True)
class Limited(Float64Map):
    """The smaller of each value and the limit of its column, which is not negative.

    Attributes
    ----------
    limits : ndarray of shape (d,)
    """

    forms: ClassVar[Forms] = KEPT

    limits: Vector

    def apply(self, rows: Values, where: str) -> Values:
        """Return the limited values; of sparse rows, the stored ones."""
        return form_of(rows).mapped(rows, partial(np.minimum, dtype=np.float64), self.limits)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The limited values, and the limits of each, in float64."""
        return 16 * rows * d, 0


@dataclass(eq=False)
class GeneSearch(Learning):
    """The reads that find the genes that vary most, their means and deviations, and the target of all cells.

    Attributes
    ----------
    found : GeneMap
    flavor : str
    n_bins : int
    span : float
    deviation, counts : ndarray of shape (d,), and (number of cells, means, squared deviations), or None
        Expected ones, and those of the counts, of "seurat_v3".
    table : pandas.DataFrame or None
        What is known of the genes at the end.
    """

    found: GeneMap
    flavor: str = "seurat"
    n_bins: int = 20
    span: float = 0.3
    deviation: Vector | None = None
    counts: tuple[float, Vector, Vector] | None = None
    table: Any = None

    def lessons(self, rows: Rows) -> Sequence[Lesson]:  # type: ignore[override]
        """Return one read of the moments; before it one of the totals, or the moments of counts, or both at once."""
        d = rows.n_columns
        first = [] if self.found.target is not None else [totals_lesson(self, rows)]
        if self.flavor == "seurat_v3":
            of_counts = {"counts": StoredColumnMoments(d)} | (dict(first[0].states) if first else {})
            first = [Lesson(self, rows, "moments of the counts", of_counts, _expecting)]
        width = d if self.flavor == "cell_ranger" else 2 * d
        logs = rows.mapped(MapStep(BesideLogs(self), width, 8 * d))
        return *first, Lesson(self, logs, "moments of the genes", {"genes": StoredColumnMoments(width)}, _choosing)

    def describe(self) -> dict[str, object]:
        """What the choice depends on, and what was found."""
        return {**self.found.describe(), "flavor": self.flavor, "n_bins": self.n_bins, "span": self.span}


@dataclass(eq=False)
class BesideLogs(NumberedMap):
    """Row map to logarithms of normalised counts, behind what the flavour compares, if that is something else."""

    forms: ClassVar[Forms] = KEPT

    search: GeneSearch

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return rows (b, d) or (b, 2 d)."""
        normalised = NormalizeTotal(self.search.found.target).apply_at(rows, numbers, where)
        logs = Log1p().apply_at(normalised, numbers, where)
        if self.search.flavor == "cell_ranger":
            return logs
        if self.search.counts is not None and self.search.deviation is not None:
            n, mean, _ = self.search.counts
            normalised = Limited(self.search.deviation * np.sqrt(n) + mean).apply(rows, where)
        return in_blocks([[normalised, logs]])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Both parts, their copies side by side, and limits of each value."""
        return 8 * rows * d * itemsize, 0

    def describe(self) -> dict[str, object]:
        """What the moments depend on."""
        return {"map": "beside logs", "flavor": self.search.flavor, "target": self.search.found.target}


def _expecting(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    """Keep the deviation that is expected for each gene, and the target."""
    search, state = cast("GeneSearch", of), cast("StoredColumnMoments", states["counts"])
    search.counts = (state.weight, state.mean, np.maximum(state.squares, 0))
    search.deviation = expected_deviation(state.mean, search.counts[2] / (state.weight - 1), search.span)
    found = search.found
    return replace(found, target=cast("RowTotals", states["totals"]).median) if "totals" in states else found


def _choosing(of: Learning, states: Mapping[str, Accumulator]) -> RowPreprocessor:
    """Choose genes by the moments of what the flavour compares, and keep those of their logarithms."""
    search, state = cast("GeneSearch", of), cast("StoredColumnMoments", states["genes"])
    found, n, d = search.found, state.weight, len(state.mean)
    left = slice(0, d if search.flavor == "cell_ranger" else d // 2)
    logs = slice(0 if search.flavor == "cell_ranger" else d // 2, d)
    mean, squares = state.mean, np.maximum(state.squares, 0)
    if search.counts is not None and search.deviation is not None:
        clipped = (mean[left], squares[left])
        table = by_clipped_variance(search.counts, clipped, search.deviation, found.n_top_genes)
    else:
        variance = squares[left] / (n - 1)
        table = by_dispersion(mean[left], variance, found.n_top_genes, search.flavor, search.n_bins)
    highly = np.asarray(table["highly_variable"])
    if highly.sum() < found.n_top_genes:
        raise ValueError(
            f"n_top_genes = {found.n_top_genes}, but only {highly.sum()} genes differ from the others of their bin. "
            f"Pass n_top_genes={highly.sum()}."
        )
    compared = tied(table["variances_norm" if "variances_norm" in table else "dispersions_norm"].to_numpy())
    order = np.argsort(np.where(highly, -compared, np.inf), kind="stable")  # of equal ones, the first genes
    genes = np.sort(order[: found.n_top_genes])
    table["highly_variable"] = np.isin(np.arange(len(highly)), genes)
    scale = np.sqrt(squares[logs] / (n - 1))
    table["mean"], table["std"] = mean[logs], np.where(scale == 0, 1, scale)
    search.table = table
    own = [tuple(values[genes].tolist()) for values in (mean[logs], scale)]
    return replace(found, genes=tuple(genes.tolist()), mean=own[0], scale=own[1])


def moments_of_genes(
    rows: Rows, name: str, maps: Sequence[RowMap], progress: ProgressArgument
) -> tuple[float, Vector, Vector]:
    """Return the number of cells, and the mean and the squared deviations of each gene, in one read."""
    d = rows.n_columns
    mapped = rows.mapped(*(MapStep(one, d, 4 * d) for one in maps))
    # About zero: the smooth function of the means jumps where two of them differ by rounding.
    found = read_once(
        mapped, StoredColumnMoments(d), name, progress=progress, dtype=np.dtype(np.float64), about_zero=True
    )
    if (found.mean < 0).any():
        gene = int(np.argmin(found.mean))
        raise ValueError(
            f"gene {gene} has mean {found.mean[gene]:g}, but counts, or logarithms of 1 + counts, were expected. "
            "Were the genes scaled before? Pass a layer from before that."
        )
    if (found.mean > LARGEST_EXACT).any():
        gene = int(np.argmax(found.mean))
        raise ValueError(
            f"gene {gene} would have {found.mean[gene]:.1e} counts in a mean cell, if these were logarithms of 1 + "
            'counts. Call sc.pp.log1p(adata) first, or pass flavor="seurat_v3", which takes counts.'
        )
    if found.count < 2:
        raise ValueError(f"variances of genes need at least 2 cells, and there are {found.count}.")
    return found.weight, found.mean, np.maximum(found.squares, 0)


def marked_genes(
    rows: Rows, n_top_genes: int, flavor: str, n_bins: int, span: float, progress: ProgressArgument
) -> pd.DataFrame:
    """Return what a flavour says of each gene, from one read of the rows, or two."""
    first: list[RowMap] = [Expm1()] if flavor == "seurat" else []
    found = moments_of_genes(rows, "moments of the genes", first, progress)
    n, mean, squares = found
    if flavor != "seurat_v3":
        return by_dispersion(mean, squares / (n - 1), n_top_genes, flavor, n_bins)
    deviation = expected_deviation(mean, squares / (n - 1), span)
    limits = [Limited(deviation * np.sqrt(n) + mean)]
    _, *clipped = moments_of_genes(rows, "moments of the clipped counts", limits, progress)
    return by_clipped_variance(found, (clipped[0], clipped[1]), deviation, n_top_genes)


@dataclass(frozen=True)
class BatchResiduals(NumberedMap, Float64Map):
    """Row map to Pearson residuals, each row by the map of its batch.

    Attributes
    ----------
    maps : tuple of PearsonResiduals
    codes : ndarray of shape (n,), int32
        The batch of each row.
    """

    maps: tuple[PearsonResiduals, ...]
    codes: Integers

    def apply_at(self, rows: Values, numbers: Integers, where: str) -> Values:
        """Return the residuals in float64."""
        out, own = np.empty(rows.shape), self.codes[numbers]
        for code in np.unique(own):
            among = np.flatnonzero(own == code)
            out[among] = self.maps[code].apply_at(rows[among].astype(np.float64), numbers[among], where)
        return out

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The rows in float64, and those of all batches after each other."""
        peak, kept = self.maps[0].bytes_for(d, rows, 8)
        return peak + 3 * 8 * d * rows, kept + self.codes.nbytes


def genes_by_residuals(
    rows: Rows, n_top_genes: int, theta: float, batches: Any, progress: ProgressArgument
) -> pd.DataFrame:
    """Return what the variances of Pearson residuals in each batch say of each gene, from two reads of the counts."""
    import pandas as pd  # which AnnData needs

    d, f8 = rows.n_columns, np.dtype(np.float64)
    groups = np.zeros(rows.n_rows, np.int8) if batches is None else batches
    empty = placed_in_folds(FoldStates(StoredColumnMoments(d), 1), rows, groups, least=1)
    kept = read_once(rows, empty, "sums of the genes", progress=progress, dtype=f8, about_zero=True)
    sums = [cast("StoredColumnMoments", one) for one in kept.states]
    maps = tuple(PearsonResiduals(theta).with_sums(one.mean, one.weight) for one in sums)
    mapped = rows.mapped(MapStep(BatchResiduals(maps, np.asarray(empty.codes)), d, 8 * d))
    found = read_once(mapped, empty, "moments of the residuals", progress=progress, dtype=f8)
    batched = [cast("StoredColumnMoments", one) for one in found.states]
    compared = np.array([tied(np.maximum(one.squares, 0) / one.weight) for one in batched])
    ranks = np.argsort(np.argsort(-compared, axis=1, kind="stable"), axis=1, kind="stable").astype(np.float32)
    ranks[ranks >= n_top_genes] = np.nan
    chosen = np.sum(~np.isnan(ranks), axis=0)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of genes that no batch chose
        rank = np.nanmedian(ranks, axis=0)
    order = np.lexsort((np.nan_to_num(rank, nan=np.inf), -chosen))  # of genes that are alike, the first
    merged = reduce(lambda one, other: one.merge(other), sums)
    table = {
        "means": merged.mean,
        "variances": merged.squares / (merged.weight - 1),
        "residual_variances": compared.mean(axis=0),
        "highly_variable_rank": rank,
        "highly_variable": np.isin(np.arange(d), order[:n_top_genes]),
    }
    if batches is not None:
        table |= {"highly_variable_nbatches": chosen, "highly_variable_intersection": chosen == len(sums)}
    return pd.DataFrame(table)


def by_dispersion(mean: Vector, variance: Vector, n_top_genes: int, flavor: str, n_bins: int) -> pd.DataFrame:
    """Return means, dispersions, those compared with genes of a similar mean, and whether a gene is highly variable."""
    import pandas as pd  # which AnnData needs

    # Genes that are alike to rounding must be in one bin, and on one side of the last gene that is chosen.
    mean = tied(np.where(mean == 0, NO_MEAN, mean))
    dispersion, edges = tied(variance / mean), np.empty(0)
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
        spread = spread.mask(alike.transform("nunique") == 1)  # whatever rounding makes of equal ones
        centre, spread = centre.mask(alone, 0.0), spread.mask(alone, centre)
    else:
        centre = alike.transform("median")
        away = (genes["dispersions"] - centre).abs()
        spread = away.groupby(bins, observed=True).transform("median") / norm.ppf(0.75)
    genes["dispersions_norm"] = (genes["dispersions"] - centre) / spread  # NaN if all of a bin are alike
    genes["dispersions_norm"] = tied(genes["dispersions_norm"].to_numpy())
    known = np.sort(genes["dispersions_norm"].dropna())[::-1]
    if not len(known):
        raise ValueError(
            "no gene differs from the others of its bin, so none is highly variable: more cells or genes were expected."
        )
    genes["highly_variable"] = genes["dispersions_norm"] >= known[min(n_top_genes, len(known)) - 1]
    return genes


def expected_deviation(mean: Vector, variance: Vector, span: float) -> Vector:
    """Return the standard deviation that a smooth function of the mean predicts for each gene; 1 for constant ones.

    Raises
    ------
    ValueError
        For too few genes or means to fit a parabola to each neighbourhood.
    """
    loess = required("skmisc.loess", 'flavor = "seurat_v3"', "'bigpca[cells]'").loess
    expected, varies = np.zeros(len(mean)), variance > 0
    x, y = np.log10(tied(mean[varies])), np.log10(tied(variance[varies]))
    try:
        if span * len(x) < COEFFICIENTS:  # for which loess crashes the process
            raise ValueError
        trend = loess(x, y, span=span, degree=2)
        trend.fit()
    except ValueError as error:
        raise ValueError(
            f'flavor = "seurat_v3" fits parabolas to a share of the genes, span = {span:g}, but only {len(x)} genes '
            f'vary, with {len(np.unique(x))} different means. Pass more genes, a larger span, or flavor="seurat".'
        ) from error
    expected[varies] = trend.outputs.fitted_values
    return np.sqrt(10**expected)


def by_clipped_variance(
    counts: tuple[float, Vector, Vector], clipped: tuple[Vector, Vector], deviation: Vector, n_top_genes: int
) -> pd.DataFrame:
    """Return means, variances, those of standardised and clipped counts, and the rank by these."""
    import pandas as pd  # which AnnData needs

    (n, mean, squares), (clipped_mean, clipped_squares) = counts, clipped
    compared = tied((clipped_squares + n * (clipped_mean - mean) ** 2) / ((n - 1) * deviation**2))
    rank = np.argsort(np.argsort(-compared, kind="stable"), kind="stable").astype(np.float32)
    highly = rank < n_top_genes
    return pd.DataFrame(
        {
            "highly_variable": highly,
            "highly_variable_rank": np.where(highly, rank, np.float32(np.nan)),
            "means": mean,
            "variances": squares / (n - 1),
            "variances_norm": compared,
        }
    )
