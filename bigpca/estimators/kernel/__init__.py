"""Kernel PCA: axes in the feature space of a kernel, exact, by a sketch, or by landmarks.

- ``kernel_pca``, ``approximate_kernel_pca``, ``nystrom_kernel_pca``   the public classes
- ``model``        the base of kernel models: scores, distances to the subspace, pre-images
- ``parameters``, ``conditions``, ``preimages``   its parameters, which methods exist, and the regression on scores
- ``choosing``     which exact fit, by cost: the features of the kernel, the matrix, or an iteration
- ``matrix_fit``      few rows: the whole kernel matrix
- ``features_fit``    a kernel with an exact finite feature map: linear PCA of the features
- ``krylov_fit``      block Krylov iteration on ``HKH``: a few sweeps, nothing of size n x n, from the axes of ``start``
- ``indefinite``      kernels that are not positive semi-definite: iteration on a shifted matrix, and warnings
- ``sketch_fit``      one sweep or two: ApproximateKernelPCA
- ``landmarks_fit``, ``landmark_features``   landmarks, Nyström features, and PCA of them: NystromKernelPCA
- ``expansion``    ``score(x) = k(x, R) A - b``: what a fitted kernel model is
- ``maps``         row maps of fitted models
- ``spectrum``, ``files``   the result of a fit, and models on disk

Add a solver of KernelPCA: a ``*_fit`` module with a ``KernelFit``, and its row in ``choosing.FITS``.

Cost is counted in sweeps, that is n^2 kernel evaluations, and ``max_kernel_evaluations`` limits it before anything
runs.
"""
