"""What a read adds up: small states, fed by blocks, merged in any grouping, carried as named arrays.

- ``base``             the contract: ``fresh``, ``update``, ``merge``, ``to_arrays``, costs; read this first
- ``products``         symmetric products of a block's rows, as several states sum them
- ``moments``          count, mean and scatter: exact PCA
- ``class_moments``, ``within_product``   the same by class: the supervised family
- ``fused_product``, ``factors``   ``X'(X W)`` in one read: sketches and Krylov iterations
- ``dot_matrix``, ``left_product``   the dot matrix and products from the left: wide data
- ``kernel_product``   a kernel matrix times a thin block, from one sweep
- ``landmark_blocks``, ``landmark_moments``   Nyström features of the rows, and moments of them
- ``drawn_rows``, ``row_weights``, ``kept_rows``   rows chosen by weight or by number, and kept

Life of a state: a template is made by the estimator, ``for_rows`` fits it to the rows, ``without_shared`` strips what
all groups share, it travels, ``with_shared`` restores that, ``fresh`` starts an empty state, ``update`` adds blocks,
``close`` ends a group; ``merge`` joins two states and changes neither; ``to_arrays`` and ``with_arrays`` are for
checkpoints.

Add a state: one file with a frozen-contract subclass of ``Accumulator``, and one row of ``CASES`` in
``tests/passes/accumulators/test_accumulators.py``.
"""
