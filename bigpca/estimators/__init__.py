"""The estimators: parameters and a result each. A family is a room; a room imports only from those before it.

- ``shared``      what all estimators are: fit, plan, transform, save; inputs, model files, the run around a fit
- ``linear``      PCA, ApproximatePCA, SketchTransformer
- ``kernel``      KernelPCA, ApproximateKernelPCA, NystromKernelPCA
- ``supervised``  SupervisedPCA, ScoredPCA, Roweis and Fisher discriminants, and their kernel forms
- ``merging``     models made of models
- ``loading``     ``bp.load``: a file to an estimator, by a static table

A call of ``PCA(...).fit(X)``: ``shared.transformer`` opens X and checks it, ``linear.choosing``
plans every way to solve the problem and takes the cheapest that fits, that way's ``*_fit`` module runs its passes
through ``bigpca.passes`` and solves the small problem left, and the class sets the fitted attributes from the result.

Add an estimator: a final class in the room of its family, its name in ``loading`` and in ``bigpca/__init__.py``, and
a run of scikit-learn's checks in ``tests/estimators/shared/test_sklearn_api.py``.
"""

import sklearn.base  # noqa: F401  before dask.array: in the other order both take a tenth longer
