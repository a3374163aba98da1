"""PCA and its approximations: axes in the space of the features.

- ``pca``, ``approximate_pca``, ``rotated_pca``, ``sketch_transformer``   the public classes
- ``model``         what linear models share: scores, rows that are added, files
- ``restoring``     rows back from scores, and rows without some components
- ``density``       likelihoods of rows, the covariance and its inverse
- ``judging``, ``monitoring``   what judges rows: T2, SPE, distances, contributions, outliers, limits; what it requires
- ``standardization``   the parameters ``center`` and ``scale``: what is given, and what is learned
- ``choosing``      which solver: all applicable fits, compared by cost
- ``covariance_fit``, ``dot_fit``   one read of moments, a (d, d) eigenproblem; the (n, n) dot matrix, for wide data
- ``krylov_fit``    block Krylov iteration: a few reads, thin states, an answer to a tolerance
- ``null_fit``      parallel analysis: the reads that find its edge, before any of these
- ``iteration``     the parts of every block Krylov iteration, including that of kernels
- ``sketch_fit``, ``sketched``   one read with a sketch, ApproximatePCA; from its product to components
- ``spectrum``      the result of a fit, and the last small solve
- ``certificates``, ``certified``   bounds from the reads of the fit itself, and their warnings; as a record, in files
- ``maps``, ``incomplete``   row maps of fitted models: scores, reconstructions, likelihoods; rows with missing values
- ``axes``, ``loadings``   algebra of the axes; correlations of features, largest weights
- ``statistics``, ``limits``   row maps that judge rows; quantiles of what they return
- ``files``         linear models on disk

Add a solver of PCA: a ``*_fit`` module with a ``PCAFit`` (its passes, its solve, its fingerprint, its run), and its
row in ``choosing.FITS``.
"""
