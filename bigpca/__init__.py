"""PCA of data that does not fit in memory: planned before it runs, bounded while it runs, resumable, exact.

Names are imported on first use, so that the command line starts quickly and workers load only what they need.
"""

from typing import TYPE_CHECKING, Any

from bigpca import dask_array
from bigpca.estimators import HOMES as ESTIMATORS
from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca import cells as cells
    from bigpca import data as data
    from bigpca import errors as errors
    from bigpca import kernels as kernels
    from bigpca import plots as plots
    from bigpca import preprocessing as preprocessing
    from bigpca import quality as quality
    from bigpca import rules as rules
    from bigpca import scales as scales
    from bigpca import sketches as sketches
    from bigpca.data.batches import from_batches as from_batches
    from bigpca.data.sources import open as open
    from bigpca.data.stores import FeatureWriter as FeatureWriter
    from bigpca.data.stores import ingest as ingest
    from bigpca.estimators.kernel.approximations import ApproximateKernelPCA as ApproximateKernelPCA
    from bigpca.estimators.kernel.approximations import NystromKernelPCA as NystromKernelPCA
    from bigpca.estimators.kernel.kernel_pca import KernelPCA as KernelPCA
    from bigpca.estimators.layers import fit_layers as fit_layers
    from bigpca.estimators.layers import plan_layers as plan_layers
    from bigpca.estimators.linear.approximate_pca import ApproximatePCA as ApproximatePCA
    from bigpca.estimators.linear.factor_analysis import FactorAnalysis as FactorAnalysis
    from bigpca.estimators.linear.pca import PCA as PCA
    from bigpca.estimators.linear.pencils import TICA as TICA
    from bigpca.estimators.linear.pencils import ContrastivePCA as ContrastivePCA
    from bigpca.estimators.linear.pencils import CorrespondenceAnalysis as CorrespondenceAnalysis
    from bigpca.estimators.linear.pencils import GeneralizedPCA as GeneralizedPCA
    from bigpca.estimators.linear.pencils import MinimumNoiseFraction as MinimumNoiseFraction
    from bigpca.estimators.linear.pencils import SlowFeatureAnalysis as SlowFeatureAnalysis
    from bigpca.estimators.linear.rotated_pca import RotatedPCA as RotatedPCA
    from bigpca.estimators.linear.sketch_transformer import SketchTransformer as SketchTransformer
    from bigpca.estimators.loading import load as load
    from bigpca.estimators.merging import merge as merge
    from bigpca.estimators.pairs.canonical import CCA as CCA
    from bigpca.estimators.pairs.canonical import PLSSVD as PLSSVD
    from bigpca.estimators.pairs.regression import PLSRegression as PLSRegression
    from bigpca.estimators.pairs.regression import Ridge as Ridge
    from bigpca.estimators.supervised.kernel_supervised import (
        KernelRoweisDiscriminantAnalysis as KernelRoweisDiscriminantAnalysis,
    )
    from bigpca.estimators.supervised.kernel_supervised import KernelSupervisedPCA as KernelSupervisedPCA
    from bigpca.estimators.supervised.linear_supervised import FisherDiscriminantAnalysis as FisherDiscriminantAnalysis
    from bigpca.estimators.supervised.linear_supervised import RoweisDiscriminantAnalysis as RoweisDiscriminantAnalysis
    from bigpca.estimators.supervised.linear_supervised import SupervisedPCA as SupervisedPCA
    from bigpca.estimators.supervised.linear_supervised import SupervisedRandomProjection as SupervisedRandomProjection
    from bigpca.estimators.supervised.roweis_map import roweis_map as roweis_map
    from bigpca.estimators.supervised.scored_pca import ScoredPCA as ScoredPCA
    from bigpca.quality.pairs import compare_layers as compare_layers
    from bigpca.settings import config as config
    from bigpca.storage.places import ObjectStore as ObjectStore

__version__ = "0.1.0"

HOMES = {
    **ESTIMATORS,
    "bigpca.data.batches": "from_batches",
    "bigpca.storage.places": "ObjectStore",
    "bigpca.data.stores": "FeatureWriter ingest",
    "bigpca.data.sources": "open",
    "bigpca.quality.pairs": "compare_layers",
    "bigpca.settings": "config",
}
MODULES = ("cells", "data", "errors", "kernels", "plots", "preprocessing", "quality", "rules", "scales", "sketches")

ELSEWHERE = {  # names of scikit-learn, xeofs and others, and what was renamed
    "IncrementalPCA": "PCA(...).partial_fit(X)",
    "TruncatedSVD": "PCA(..., center=False)",
    "LDA": "FisherDiscriminantAnalysis",
    "LinearDiscriminantAnalysis": "FisherDiscriminantAnalysis",
    "Nystroem": "NystromKernelPCA",
    "EOF": "PCA(...).to_xarray()",
    "MCA": "PLSSVD",
    "RidgeCV": "Ridge(alpha=[...])",
    "rows": "preprocessing",
    "Place": "ObjectStore",
    "pca": "cells.pca, or PCA(...).fit(X)",
}
__getattr__, __dir__, __all__ = lazily(__name__, HOMES, MODULES, ELSEWHERE)


def _computed(given: Any) -> Any:
    from bigpca.passes.graphs import computed

    return computed(given)


dask_array.computed = _computed
