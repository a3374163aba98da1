"""Kernel PCA: axes in the feature space of a kernel, exact, by a sketch, or by landmarks.

- ``kernel_pca``, ``approximations``   the public classes: KernelPCA chooses its fit by cost, the whole kernel matrix of
  few rows, or block Krylov iteration on ``HKH`` (a few sweeps, nothing of size n x n); ApproximateKernelPCA has a
  sketch of the kernel matrix (one sweep or two), NystromKernelPCA landmarks
- ``model``        the base of kernel models: parameters, which methods exist, scores, distances, pre-images
- ``landmarks``    landmarks, Nyström features, and PCA of them: NystromKernelPCA; and, for a kernel with an exact
  finite feature map, linear PCA of the features
- ``maps``         row maps of fitted models, above all ``score(x) = k(x, R) A - b``
- ``spectrum``     settings and result of a fit, the steps that fits share, and models on disk

Add a solver of KernelPCA: a ``KernelFit``, and its row in ``kernel_pca.FITS``.

Cost is counted in sweeps of n^2 / 2 kernel evaluations, and ``max_kernel_evaluations`` limits it before anything runs.
"""
