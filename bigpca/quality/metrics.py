"""How well an approximation agrees with the original: axes, eigenvalues, reconstructions, dot products.

The public names of ``axes``, ``reconstruction`` and ``dot_products``.
"""

from bigpca.quality.axes import eigenvalue_difference, principal_angles, similarity
from bigpca.quality.dot_products import DotProductError, dot_product_error
from bigpca.quality.reconstruction import ReconstructionError, reconstruction_error

__all__ = [
    "DotProductError",
    "ReconstructionError",
    "dot_product_error",
    "eigenvalue_difference",
    "principal_angles",
    "reconstruction_error",
    "similarity",
]
