"""Symmetric matrices that are never formed and can only be multiplied by a thin block, in one read or sweep.

- ``products``    what all of them return: a block and its product, and those of the probes
- ``covariance``  ``X'X / (n - 1)`` of centred rows (d, d): one fold per product, declared in ``covariance_passes``
- ``dot``         ``X X' / (n - 1)`` of centred rows (n, n), for stores chunked in columns
- ``kernel``      ``HKH`` (n, n): one sweep over pairs of rows per product

A fit declares the products (``CovariancePasses``, ``dot_pass``, ``product_pass``) and makes an operator; a solver calls
``begin`` with its first block, then ``multiply``. Each call folds or sweeps the rows, with their view and row maps
(``dot`` requires rows as they are stored), and returns the centred product. The first one also yields the statistics
of the matrix (mean, scale, trace) and the products of the probes for the certificates; ``refine`` switches to float64.
Sketches, Nyström approximations, Krylov iterations and certificates are written once, on ``multiply``. Rows with
weights are rejected, because the states of products do not accept them.

Add an operator: ``size``, ``precision``, ``trace``, ``begin``, ``multiply``; a test in ``tests/operators`` against
NumPy that counts reads.
"""
