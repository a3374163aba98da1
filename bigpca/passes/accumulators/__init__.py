"""Accumulators: small states that are updated with blocks, merged in any grouping, and stored as named arrays.

- ``base``  The contract of accumulators, small states that fold blocks, merge and are stored; and what several of
  them share.
- ``moments``  Moments of the rows: count, mean and centred scatter, or the squares of each column only; and of
  labelled rows, with the within-class scatter, or its product with a thin matrix; and how many labels are predicted.
- ``folds``  One state for each fold of the rows, or for each group of them, from one read; and what is left without
  each.
- ``paired_moments``  Sums of pairs of rows at a lag, formed where they are read, with moments of the steps between
  them; moments of blocks side by side, with the sums of row norms that debiased statistics need.
- ``all_pairs``  States of the dot matrix, over pairs of row panels or over column blocks, and of products with
  column blocks; and of one sweep over a kernel matrix: its product with a thin block, its trace and its row norms.
- ``landmark_moments``  Moments of Nyström features in one read of X, and the blocks of kernel values that they come
  from.
- ``row_weights``  Rows drawn by weight in one read of X, and the weights: functions of a block, evaluated where the
  rows are read.
- ``kept_rows``  States that keep rows: those with given numbers, a sample, all of them, the ends of each column; or
  their sums: each that occurs, and how often.
- ``observed_columns``  What there is in each column of rows with missing values: its weight, and the mean; the
  reads that found it; the expectation step of factors of such rows.
- ``thin_products``  Products of all rows with thin matrices: ``X'(X W)`` in one read instead of two, and ``V'X``.

Life of a state: the estimator makes a template; ``for_rows`` is what is sent to a task, with the parameters of its rows
and without the broadcast value, which ``with_shared`` restores there; ``fresh`` returns an empty state, ``update`` adds
blocks, ``close`` ends a group. ``merge`` adds two states, field by field if a state says nothing else, and changes
neither. Fields made by ``kept`` are what a closed state holds: their shapes give the empty state, its bytes in plans,
and its arrays in checkpoints and models. ``accepts`` names the blocks that ``update`` can use: the engine makes sparse
rows dense, and rejects weights, for states that do not accept them.

Add a state: one file with a subclass of ``Accumulator``, and one row of ``CASES`` in
``tests/passes/accumulators/test_accumulators.py``.
"""
