"""PCA and its approximations: axes in the space of the features.

- ``pca``, ``approximate_pca``, ``rotated_pca``, ``sketch_transformer``   the public classes
- ``model``         what linear models share: scores, reconstructions, rows that are added
- ``density``       likelihoods of rows, the covariance and its inverse
- ``judging``       what ``density`` and ``monitoring`` require of a model
- ``monitoring``    what judges rows: T2, SPE, distances, contributions, outliers, limits
- ``standardization``   the parameters ``center`` and ``scale``: what is given, and what is learned
- ``choosing``      which solver: all applicable fits, compared by cost
- ``covariance_fit``   one read of moments, a (d, d) eigenproblem
- ``dot_fit``          the (n, n) dot matrix, for wide data
- ``krylov_fit``       block Krylov iteration: a few reads, thin states, an answer to a tolerance
- ``null_fit``         parallel analysis: the reads that find its edge, before any of these
- ``iteration``      the parts of every block Krylov iteration, including that of kernels
- ``sketched``       from a sketch and its product to components
- ``sketch_fit``       one read with a sketch: ApproximatePCA
- ``spectrum``      the result of a fit, and the last small solve
- ``certificates``  bounds from the reads of the fit itself, and the warnings that follow from them
- ``certified``     those bounds as a record, as fitted attributes and in model files
- ``axes``          algebra of the axes: duals, orthonormality, a covariance made of them
- ``maps``          row maps of fitted models: scores, reconstructions, likelihoods
- ``loadings``      correlations of features, largest weights
- ``statistics``, ``limits``   row maps that judge rows; quantiles of what they return
- ``files``         linear models on disk

Add a solver of PCA: a ``*_fit`` module with a ``PCAFit`` (its passes, its solve, its fingerprint, its run), and its
row in ``choosing.FITS``.
"""
