"""Rules that are given to a constructor: how many components are kept."""

from typing import TYPE_CHECKING

from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca.solvers.components import CrossValidated as CrossValidated
    from bigpca.solvers.components import Elbow as Elbow
    from bigpca.solvers.components import GavishDonoho as GavishDonoho
    from bigpca.solvers.components import MarchenkoPastur as MarchenkoPastur
    from bigpca.solvers.components import ParallelAnalysis as ParallelAnalysis
    from bigpca.solvers.components import RelativeThreshold as RelativeThreshold

HOMES = {
    "bigpca.solvers.components": (
        "CrossValidated Elbow GavishDonoho MarchenkoPastur ParallelAnalysis RelativeThreshold"
    ),
}

__getattr__, __dir__, __all__ = lazily(__name__, HOMES)
