"""Two blocks of columns whose rows belong together: X and Y side by side, in one read of both.

- ``model``  The base of estimators of two sides: their joint moments, with folds, and scores of both sides.
- ``canonical``  Canonical correlations, and the singular value decomposition of the covariance between two sides.
- ``regression``  Partial least squares regression, and ridge regression of all targets on all features for many
  penalties, each with folds from the same read.

``fit(X, Y)`` opens both sides, joins them (``open_pair``), and folds one read into the moments of all columns: a
``SumsModel`` of ``linear.sums``. A problem is solved from these alone, for any number of components or penalties.

Add a method of two sides: a final class on ``SideScores`` or ``Predicts`` (or both) that defines its solve and its
result, in the table of
``estimators/loading.py``.
"""
