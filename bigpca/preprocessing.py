"""What is done to each row as it is read, by ``preprocess=``."""

from typing import TYPE_CHECKING

from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca.passes.reading.row_maps import L2 as L2
    from bigpca.passes.reading.row_maps import Log1p as Log1p
    from bigpca.passes.reading.row_maps import NormalizeTotal as NormalizeTotal
    from bigpca.passes.reading.row_maps import PearsonResiduals as PearsonResiduals
    from bigpca.passes.reading.row_maps import Power as Power
    from bigpca.passes.reading.row_maps import Standardize as Standardize

HOMES = {
    "bigpca.passes.reading.row_maps": "L2 Log1p NormalizeTotal PearsonResiduals Power Standardize",
}

__getattr__, __dir__, __all__ = lazily(__name__, HOMES)
