"""Symmetric matrices that are never formed and can only be multiplied: each product with a thin block is one read.

- ``covariance``  ``X'X / (n - 1)`` of centred rows (d, d): one fold per product
- ``dot``         ``X X'`` of centred rows (n, n), for stores chunked in columns
- ``kernel``      ``HKH`` (n, n): one sweep over pairs of rows per product

Sketches, Nyström approximations, Krylov iterations and certificates are written once, on ``multiply``. An operator also
collects what the first read gives for nothing: row count, mean, scale, trace.

Add an operator: ``size``, ``precision``, ``trace``, ``multiply``; a test in ``tests/operators`` against NumPy that
counts reads.
"""
