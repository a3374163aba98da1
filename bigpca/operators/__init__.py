"""Symmetric matrices that are never formed and can only be multiplied by a thin block, in one read or sweep.

- ``covariance``  The covariance matrix (d, d) and the dot matrix (n, n) as operators: never formed, multiplied by a
  thin block in one read.
- ``kernel``  The centred kernel matrix as an operator: ``HKH`` (n, n), never formed, multiplied by a thin block in
  one sweep.
- ``base``  What every operator promises, and what its products are: of blocks, and of the probes that bound
  eigenvalues.

A fit declares the products (``CovariancePasses``, ``dot_pass``, ``product_pass``) and makes an operator; a solver calls
``begin`` with its first block, then ``multiply``. Each call folds or sweeps the rows, with their view and row maps
(the dot matrix requires rows as they are stored), and returns the centred product. The first one also yields the
statistics of the matrix (mean, scale, trace) and the products of the probes for the certificates; ``refine``
switches to float64.
Sketches, Nyström approximations, Krylov iterations and certificates are written once, on ``multiply``. Rows with
weights are rejected, because the states of products do not accept them.

Add an operator: a subclass of :class:`~bigpca.operators.base.Operator`, and a test in ``tests/operators`` against NumPy
that counts reads.
"""
