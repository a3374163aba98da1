"""PCA of data that does not fit in memory: planned before it runs, bounded while it runs, resumable, exact.

Names are imported on first use, so that the command line starts quickly and workers load only what they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigpca import kernels as kernels
    from bigpca import plots as plots
    from bigpca import quality as quality
    from bigpca import sketches as sketches
    from bigpca.cells import pca as pca
    from bigpca.data.alignment import as_maps as as_maps
    from bigpca.data.alignment import by_key as by_key
    from bigpca.data.alignment import repeat_labels as repeat_labels
    from bigpca.data.batches import from_batches as from_batches
    from bigpca.data.feature_writer import FeatureWriter as FeatureWriter
    from bigpca.data.ingest import ingest as ingest
    from bigpca.data.keys import stored_keys as stored_keys
    from bigpca.data.provenance import provenance_of as provenance_of
    from bigpca.data.sources import open as open
    from bigpca.data.verify import verify as verify
    from bigpca.data.weights import reliability as reliability
    from bigpca.errors import ApproximationWarning as ApproximationWarning
    from bigpca.errors import CheckpointError as CheckpointError
    from bigpca.errors import CorruptedChunkError as CorruptedChunkError
    from bigpca.errors import EvaluationBudgetError as EvaluationBudgetError
    from bigpca.errors import MemoryBudgetError as MemoryBudgetError
    from bigpca.errors import MissingChunksError as MissingChunksError
    from bigpca.errors import ModelFormatError as ModelFormatError
    from bigpca.errors import NonFiniteError as NonFiniteError
    from bigpca.errors import OutputExistsError as OutputExistsError
    from bigpca.errors import OutputLockedError as OutputLockedError
    from bigpca.errors import OutputWriteError as OutputWriteError
    from bigpca.estimators.kernel.approximate_kernel_pca import ApproximateKernelPCA as ApproximateKernelPCA
    from bigpca.estimators.kernel.kernel_pca import KernelPCA as KernelPCA
    from bigpca.estimators.kernel.nystrom_kernel_pca import NystromKernelPCA as NystromKernelPCA
    from bigpca.estimators.linear.approximate_pca import ApproximatePCA as ApproximatePCA
    from bigpca.estimators.linear.pca import PCA as PCA
    from bigpca.estimators.linear.rotated_pca import RotatedPCA as RotatedPCA
    from bigpca.estimators.linear.rotated_pca import rotate as rotate
    from bigpca.estimators.linear.sketch_transformer import SketchTransformer as SketchTransformer
    from bigpca.estimators.loading import load as load
    from bigpca.estimators.merging import merge as merge
    from bigpca.estimators.merging import select_solver as select_solver
    from bigpca.estimators.supervised.discriminants import FisherDiscriminantAnalysis as FisherDiscriminantAnalysis
    from bigpca.estimators.supervised.discriminants import RoweisDiscriminantAnalysis as RoweisDiscriminantAnalysis
    from bigpca.estimators.supervised.kernel_supervised import (
        KernelRoweisDiscriminantAnalysis as KernelRoweisDiscriminantAnalysis,
    )
    from bigpca.estimators.supervised.kernel_supervised import KernelSupervisedPCA as KernelSupervisedPCA
    from bigpca.estimators.supervised.kernel_supervised import hsic as hsic
    from bigpca.estimators.supervised.roweis_map import RoweisMap as RoweisMap
    from bigpca.estimators.supervised.roweis_map import roweis_map as roweis_map
    from bigpca.estimators.supervised.scored_pca import ScoredPCA as ScoredPCA
    from bigpca.estimators.supervised.supervised_pca import SupervisedPCA as SupervisedPCA
    from bigpca.estimators.supervised.supervised_pca import SupervisedRandomProjection as SupervisedRandomProjection
    from bigpca.passes.reading.preprocessing import L2 as L2
    from bigpca.passes.reading.preprocessing import Power as Power
    from bigpca.quality.importance import extremes as extremes
    from bigpca.quality.metrics import compare as compare
    from bigpca.quality.metrics import frechet_distance as frechet_distance
    from bigpca.quality.standard_errors import standard_errors as standard_errors
    from bigpca.settings import config as config
    from bigpca.solvers.components import Elbow as Elbow
    from bigpca.solvers.components import GavishDonoho as GavishDonoho
    from bigpca.solvers.components import MarchenkoPastur as MarchenkoPastur
    from bigpca.solvers.components import ParallelAnalysis as ParallelAnalysis
    from bigpca.solvers.components import RelativeThreshold as RelativeThreshold
    from bigpca.solvers.scaling import CosLatitude as CosLatitude
    from bigpca.solvers.scaling import Patterson as Patterson
    from bigpca.solvers.scaling import Whitening as Whitening

__version__ = "0.1.0"

HOMES = {
    "pca": "bigpca.cells",
    "by_key": "bigpca.data.alignment",
    "FeatureWriter": "bigpca.data.feature_writer",
    "from_batches": "bigpca.data.batches",
    "ingest": "bigpca.data.ingest",
    "stored_keys": "bigpca.data.keys",
    "provenance_of": "bigpca.data.provenance",
    "as_maps": "bigpca.data.alignment",
    "repeat_labels": "bigpca.data.alignment",
    "open": "bigpca.data.sources",
    "verify": "bigpca.data.verify",
    "reliability": "bigpca.data.weights",
    "ApproximationWarning": "bigpca.errors",
    "CheckpointError": "bigpca.errors",
    "CorruptedChunkError": "bigpca.errors",
    "EvaluationBudgetError": "bigpca.errors",
    "MemoryBudgetError": "bigpca.errors",
    "MissingChunksError": "bigpca.errors",
    "ModelFormatError": "bigpca.errors",
    "NonFiniteError": "bigpca.errors",
    "OutputExistsError": "bigpca.errors",
    "OutputLockedError": "bigpca.errors",
    "OutputWriteError": "bigpca.errors",
    "load": "bigpca.estimators.loading",
    "PCA": "bigpca.estimators.linear.pca",
    "ApproximateKernelPCA": "bigpca.estimators.kernel.approximate_kernel_pca",
    "KernelPCA": "bigpca.estimators.kernel.kernel_pca",
    "NystromKernelPCA": "bigpca.estimators.kernel.nystrom_kernel_pca",
    "ApproximatePCA": "bigpca.estimators.linear.approximate_pca",
    "RotatedPCA": "bigpca.estimators.linear.rotated_pca",
    "rotate": "bigpca.estimators.linear.rotated_pca",
    "SketchTransformer": "bigpca.estimators.linear.sketch_transformer",
    "FisherDiscriminantAnalysis": "bigpca.estimators.supervised.discriminants",
    "KernelRoweisDiscriminantAnalysis": "bigpca.estimators.supervised.kernel_supervised",
    "KernelSupervisedPCA": "bigpca.estimators.supervised.kernel_supervised",
    "RoweisDiscriminantAnalysis": "bigpca.estimators.supervised.discriminants",
    "SupervisedPCA": "bigpca.estimators.supervised.supervised_pca",
    "SupervisedRandomProjection": "bigpca.estimators.supervised.supervised_pca",
    "RoweisMap": "bigpca.estimators.supervised.roweis_map",
    "roweis_map": "bigpca.estimators.supervised.roweis_map",
    "ScoredPCA": "bigpca.estimators.supervised.scored_pca",
    "merge": "bigpca.estimators.merging",
    "select_solver": "bigpca.estimators.merging",
    "L2": "bigpca.passes.reading.preprocessing",
    "Power": "bigpca.passes.reading.preprocessing",
    "compare": "bigpca.quality.metrics",
    "frechet_distance": "bigpca.quality.metrics",
    "hsic": "bigpca.estimators.supervised.kernel_supervised",
    "standard_errors": "bigpca.quality.standard_errors",
    "extremes": "bigpca.quality.importance",
    "config": "bigpca.settings",
    "Elbow": "bigpca.solvers.components",
    "GavishDonoho": "bigpca.solvers.components",
    "MarchenkoPastur": "bigpca.solvers.components",
    "ParallelAnalysis": "bigpca.solvers.components",
    "RelativeThreshold": "bigpca.solvers.components",
    "CosLatitude": "bigpca.solvers.scaling",
    "Patterson": "bigpca.solvers.scaling",
    "Whitening": "bigpca.solvers.scaling",
}

_MODULES = {
    "kernels": "bigpca.kernels",
    "plots": "bigpca.plots",
    "quality": "bigpca.quality",
    "sketches": "bigpca.sketches",
}

__all__ = sorted({*HOMES, *_MODULES})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in HOMES:
        raise AttributeError(f"module 'bigpca' has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
