"""The estimators, one folder for each family; a folder imports only from those before it.

- ``shared/``      what all estimators share: fit, plan, transform, save; inputs, model files, the surroundings of a run
- ``linear/``      PCA, ApproximatePCA, FactorAnalysis, SketchTransformer; contrasts, slow features, tICA
- ``pairs/``       two sides whose rows belong together: CCA, PLSSVD, PLSRegression, Ridge
- ``kernel/``      KernelPCA, ApproximateKernelPCA, NystromKernelPCA
- ``supervised/``  SupervisedPCA, ScoredPCA, Roweis and Fisher discriminants, their kernel forms
- ``merging``     the model of all rows of two models
- ``layers``      one model for each layer of a network, from one pass over batches of dicts
- ``loading``     ``bp.load``: a file to an estimator of the table below

A call of ``PCA(...).fit(X)``: ``shared.transformer`` opens X and checks it, ``linear.choosing``
plans every solver and chooses the cheapest that fits, the ``Fit`` of that solver executes its passes through
``bigpca.passes`` and solves the remaining small problem, and the class sets the fitted attributes from the result.

Add an estimator: a final class in the folder of its family, its name in the table below and, for type checkers, in
``bigpca/__init__.py``, and a run of scikit-learn's checks in ``tests/estimators/shared/test_sklearn_api.py``.
"""

HOMES = {  # of public names, which are imported on first use; a model file names one of these estimators
    "bigpca.estimators.kernel.approximations": "ApproximateKernelPCA NystromKernelPCA",
    "bigpca.estimators.kernel.kernel_pca": "KernelPCA",
    "bigpca.estimators.layers": "fit_layers plan_layers",
    "bigpca.estimators.linear.approximate_pca": "ApproximatePCA",
    "bigpca.estimators.linear.factor_analysis": "FactorAnalysis",
    "bigpca.estimators.linear.pca": "PCA",
    "bigpca.estimators.linear.pencils": (
        "ContrastivePCA CorrespondenceAnalysis GeneralizedPCA MinimumNoiseFraction SlowFeatureAnalysis TICA"
    ),
    "bigpca.estimators.linear.rotated_pca": "RotatedPCA",
    "bigpca.estimators.linear.sketch_transformer": "SketchTransformer",
    "bigpca.estimators.loading": "load",
    "bigpca.estimators.merging": "merge",
    "bigpca.estimators.pairs.canonical": "CCA PLSSVD",
    "bigpca.estimators.pairs.regression": "PLSRegression Ridge",
    "bigpca.estimators.supervised.kernel_supervised": "KernelRoweisDiscriminantAnalysis KernelSupervisedPCA",
    "bigpca.estimators.supervised.linear_supervised": (
        "FisherDiscriminantAnalysis RoweisDiscriminantAnalysis SupervisedPCA SupervisedRandomProjection"
    ),
    "bigpca.estimators.supervised.roweis_map": "roweis_map",
    "bigpca.estimators.supervised.scored_pca": "ScoredPCA",
}
