"""PCA of data that does not fit in memory: planned before it runs, bounded while it runs, resumable, exact.

Names are imported when they are first used, so that the command line answers at once and workers load what they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bigpca import kernels as kernels
    from bigpca import sketches as sketches
    from bigpca.data.ingest import ingest as ingest
    from bigpca.data.sources import open as open
    from bigpca.data.verify import verify as verify
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
    from bigpca.estimators.approximate_kernel_pca import ApproximateKernelPCA as ApproximateKernelPCA
    from bigpca.estimators.approximate_pca import ApproximatePCA as ApproximatePCA
    from bigpca.estimators.combining import merge as merge
    from bigpca.estimators.combining import select_solver as select_solver
    from bigpca.estimators.kernel_pca import KernelPCA as KernelPCA
    from bigpca.estimators.kernel_supervised import KernelRoweisDiscriminantAnalysis as KernelRoweisDiscriminantAnalysis
    from bigpca.estimators.kernel_supervised import KernelSupervisedPCA as KernelSupervisedPCA
    from bigpca.estimators.loading import load as load
    from bigpca.estimators.nystrom_kernel_pca import NystromKernelPCA as NystromKernelPCA
    from bigpca.estimators.pca import PCA as PCA
    from bigpca.estimators.roweis import FisherDiscriminantAnalysis as FisherDiscriminantAnalysis
    from bigpca.estimators.roweis import RoweisDiscriminantAnalysis as RoweisDiscriminantAnalysis
    from bigpca.estimators.roweis_map import RoweisMap as RoweisMap
    from bigpca.estimators.roweis_map import roweis_map as roweis_map
    from bigpca.estimators.scored_pca import ScoredPCA as ScoredPCA
    from bigpca.estimators.sketch_transformer import SketchTransformer as SketchTransformer
    from bigpca.estimators.supervised_pca import SupervisedPCA as SupervisedPCA
    from bigpca.estimators.supervised_pca import SupervisedRandomProjection as SupervisedRandomProjection
    from bigpca.quality.dependence import hsic as hsic
    from bigpca.solvers.components import Elbow as Elbow
    from bigpca.solvers.components import GavishDonoho as GavishDonoho
    from bigpca.solvers.components import MarchenkoPastur as MarchenkoPastur
    from bigpca.solvers.components import RelativeThreshold as RelativeThreshold

__version__ = "0.1.0"

_HOMES = {
    "ingest": "bigpca.data.ingest",
    "open": "bigpca.data.sources",
    "verify": "bigpca.data.verify",
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
    "PCA": "bigpca.estimators.pca",
    "ApproximateKernelPCA": "bigpca.estimators.approximate_kernel_pca",
    "KernelPCA": "bigpca.estimators.kernel_pca",
    "NystromKernelPCA": "bigpca.estimators.nystrom_kernel_pca",
    "ApproximatePCA": "bigpca.estimators.approximate_pca",
    "SketchTransformer": "bigpca.estimators.sketch_transformer",
    "FisherDiscriminantAnalysis": "bigpca.estimators.roweis",
    "KernelRoweisDiscriminantAnalysis": "bigpca.estimators.kernel_supervised",
    "KernelSupervisedPCA": "bigpca.estimators.kernel_supervised",
    "RoweisDiscriminantAnalysis": "bigpca.estimators.roweis",
    "SupervisedPCA": "bigpca.estimators.supervised_pca",
    "SupervisedRandomProjection": "bigpca.estimators.supervised_pca",
    "RoweisMap": "bigpca.estimators.roweis_map",
    "roweis_map": "bigpca.estimators.roweis_map",
    "ScoredPCA": "bigpca.estimators.scored_pca",
    "merge": "bigpca.estimators.combining",
    "select_solver": "bigpca.estimators.combining",
    "hsic": "bigpca.quality.dependence",
    "Elbow": "bigpca.solvers.components",
    "GavishDonoho": "bigpca.solvers.components",
    "MarchenkoPastur": "bigpca.solvers.components",
    "RelativeThreshold": "bigpca.solvers.components",
}

_MODULES = {"kernels": "bigpca.kernels", "sketches": "bigpca.sketches"}

__all__ = sorted({*_HOMES, *_MODULES})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'bigpca' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES})
