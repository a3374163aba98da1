"""Small dense linear algebra in NumPy and SciPy: arrays in, arrays out, no Dask and no files.

- ``eigh``, ``leading``, ``indefinite``   dense symmetric eigenproblems: all pairs, a few, or signed ones
- ``dual``                                principal axes of a few rows, by their dot matrix
- ``nystrom``                             the approximation of a positive semi-definite matrix from one product
- ``krylov``, ``krylov_problem``          block Krylov iteration: the loop; its records and costs
- ``krylov_basis``, ``krylov_pairs``      its basis and Ritz pairs
- ``basis_approximation``, ``strips``     the approximation it returns; long rows shared by threads
- ``certificates``                        error bounds from the products that gave the answer
- ``features``, ``pivoting``              from landmarks to features; pivots for randomly pivoted Cholesky
- ``roweis``                              the supervised family from its statistics
- ``rotation``                            varimax and promax of loadings
- ``components``, ``component_rules``, ``parallel_analysis``, ``minka``   how many components to keep
- ``scaling``, ``whitening``              rules for the scale of columns and of scores

Each file reads like its source, which the docstrings name down to the equation; departures from it are marked NOTE.

Add a solver: one file, and a test on matrices whose spectrum is known (``tests/builders.py``).
"""
