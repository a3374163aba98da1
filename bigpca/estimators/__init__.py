"""The estimators, one folder for each family; a folder imports only from those before it.

- ``shared/``      what all estimators share: fit, plan, transform, save; inputs, model files, the surroundings of a run
- ``linear/``      PCA, ApproximatePCA, FactorAnalysis, SketchTransformer
- ``pairs/``       two sides whose rows belong together: CCA, PLSSVD, PLSRegression, Ridge
- ``kernel/``      KernelPCA, ApproximateKernelPCA, NystromKernelPCA
- ``supervised/``  SupervisedPCA, ScoredPCA, Roweis and Fisher discriminants, their kernel forms; slow features, tICA
- ``merging``     the model of all rows of two models
- ``layers``      one model for each layer of a network, from one pass over batches of dicts
- ``loading``     ``bp.load``: a file to an estimator, by a static table

A call of ``PCA(...).fit(X)``: ``shared.transformer`` opens X and checks it, ``linear.choosing``
plans every solver and chooses the cheapest that fits, the ``Fit`` of that solver executes its passes through
``bigpca.passes`` and solves the remaining small problem, and the class sets the fitted attributes from the result.

Add an estimator: a final class in the folder of its family, its name in ``loading`` and in ``bigpca/__init__.py``, and
a run of scikit-learn's checks in ``tests/estimators/shared/test_sklearn_api.py``.
"""
