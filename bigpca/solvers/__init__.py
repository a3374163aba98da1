"""Small dense linear algebra in NumPy and SciPy: arrays in, arrays out, no Dask and no files.

- ``eigh``  Dense symmetric eigenproblems: the small solve after the last pass.
- ``dual``  Principal axes of a few rows by their dot matrix: the estimate from a sample, before all rows are read.
- ``nystrom``  Nyström approximation of a symmetric matrix from one product, Y = A W: positive semi-definite, or not.
- ``krylov``  Block Krylov iteration: leading eigenpairs of a matrix available only as products, each a read of all
  data.
- ``strips``  Long rows, strip by strip of their entries: what is worked on stays in a core's cache, and threads share
  the strips.
- ``certificates``  How far an approximate answer can be from the true one: bounds that hold, from the reads that gave
  the answer.
- ``landmarks``  The factor T of K_mm that makes ``B = k(X, L) T`` a feature map, and the pivots of randomly pivoted
  Cholesky.
- ``roweis``  The Roweis family from sufficient statistics: every (r1, r2) by one rotation, supervised PCA by a thin
  matrix.
- ``moments``  One solve from moments: the numerical range of a scatter, penalties in the units of its columns, and the
  coordinates in which one more read finds more digits.
- ``pairs``  Two blocks of columns and their centred moments: alignment of kernels, canonical correlations,
  covariances.
- ``rotation``  Rotations of loadings to simple structure: varimax, quartimax and promax.
- ``components``  How many components: from ``n_components`` and a spectrum, whole or partial, to k.
- ``shrinkage``  Scores of new rows beside those of the fit, where rows are few beside columns.
- ``scaling``  Scales of columns and of scores: rules that users give instead of True or a vector.

Each file reads like its source, which the docstrings name down to the equation; departures from it are marked NOTE.

Add a solver: one file, and a test on matrices whose spectrum is known (``tests/builders.py``).
"""
