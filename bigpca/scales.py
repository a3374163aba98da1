"""How columns are scaled, by ``scale=``, and scores, by ``whiten=``."""

from typing import TYPE_CHECKING

from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca.solvers.scaling import Blocks as Blocks
    from bigpca.solvers.scaling import CosLatitude as CosLatitude
    from bigpca.solvers.scaling import Patterson as Patterson
    from bigpca.solvers.scaling import Whitening as Whitening

HOMES = {
    "bigpca.solvers.scaling": "Blocks CosLatitude Patterson Whitening",
}

__getattr__, __dir__, __all__ = lazily(__name__, HOMES)
