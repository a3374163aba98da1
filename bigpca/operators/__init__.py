"""Symmetric matrices that are never formed and can only be multiplied: each product with a thin block is one read.

- ``covariance``  ``X'X / (n - 1)`` of centred rows (d, d): one fold per product
- ``dot``         ``X X' / (n - 1)`` of centred rows (n, n), for stores chunked in columns
- ``kernel``      ``HKH`` (n, n): one sweep over pairs of rows per product

A fit declares the products (``CovariancePasses``, ``dot_pass``, ``product_pass``) and makes an operator; a solver calls
``begin`` with its first block, then ``multiply``. Each call folds or sweeps the rows, with their view and row maps
(``dot`` requires rows as they are stored), and centres the product where the merged state is.
The first read also yields row count, mean, scale, trace, and products of the probes for the certificates; ``refine``
switches to float64. Sketches, Nyström approximations, Krylov iterations and certificates are written once, on
``multiply``. Rows with weights are rejected, because the states of products do not accept them.

Add an operator: ``size``, ``precision``, ``trace``, ``begin``, ``multiply``; a test in ``tests/operators`` against
NumPy that counts reads.
"""
