"""Accumulators: small states that are updated with blocks, merged in any grouping, and stored as named arrays.

- ``base``             the contract: ``fresh``, ``update``, ``merge``, ``to_arrays``, costs; read this first
- ``products``         symmetric products of a block's rows, shared by several states
- ``moments``          count, mean and scatter: exact PCA
- ``class_moments``, ``within_product``   the same by class: the supervised family
- ``fused_product``, ``factors``   ``X'(X W)`` in one read: sketches and Krylov iterations
- ``dot_matrix``, ``left_product``   the dot matrix and products from the left: wide data
- ``column_products``, ``column_statistics``   the same from blocks of columns: stores chunked in columns
- ``kernel_product``   a kernel matrix times a thin block, from one sweep
- ``landmark_blocks``, ``landmark_moments``   Nyström features of the rows, and moments of them
- ``drawn_rows``, ``row_weights``, ``kept_rows``   rows chosen by sampling weight or by number, and kept
- ``observed_columns``, ``centring``   columns with missing values; the error of sums over sparse rows
- ``furthest``         the rows with the lowest and highest values of each column

Life of a state: the estimator makes a template, ``for_rows`` cuts its parameters to the rows of a group,
``without_shared`` removes the broadcast value before the template is sent, ``with_shared`` restores it in the task,
``fresh`` returns an empty state, ``update`` adds blocks, ``close`` ends a group. ``merge`` adds two states and changes
neither; ``to_arrays`` and ``with_arrays`` are for checkpoints. ``accepts`` names the blocks that ``update`` can use:
the engine makes sparse rows dense, and rejects weights, for states that do not accept them.

Add a state: one file with a subclass of ``Accumulator``, and one row of ``CASES`` in
``tests/passes/accumulators/test_accumulators.py``.
"""
