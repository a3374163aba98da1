"""PCA and its approximations: axes in the space of the features.

- ``pca``, ``approximate_pca``, ``rotated_pca``, ``factor_analysis``, ``sketch_transformer``   the public classes;
  ``approximate_pca`` also has its one read with a sketch, and what leads from its product to components
- ``model``         ``LinearModel``: scores, densities, axes, rows that are added, files
- ``monitoring``    ``RowStatistics``, its base: T2, SPE, distances, contributions, outliers, and their limits
- ``shrinkage``     scores of new rows corrected where rows of the fit are few beside columns
- ``maps``          row maps of fitted models: scores, reconstructions, likelihoods; rows with missing values; the
  parameters ``center`` and ``scale``
- ``choosing``      which solver: all applicable fits, compared by cost; parallel analysis, whose reads come before
- ``spectrum``      what a fit computes, its result, and the solve from moments
- ``covariance_fit``  one read of moments, and their (d, d) eigenproblem
- ``dot_fit``       the (n, n) dot matrix, for wide data
- ``krylov``        block Krylov iteration: a few reads, thin states, an answer to a tolerance; its parts serve kernels
- ``em_fit``        rows with missing values: probabilistic PCA and factors by an EM iteration of one read a step
- ``sums``          one read into a state, a solve from it, and a second read where digits lack, for models that need
  nothing else
- ``pencils``       slow features, minimum noise fraction, tICA, contrasts, metrics, tables: pencils of two sums

Add a pencil: a class on ``PencilModel`` with its ``Pencil``, its empty sums, and A and B from these.

Add a solver of PCA: a module with a ``PCAFit`` (its passes, its solve, its fingerprint, its run), and its row in
``choosing.FITS``.
"""
