"""Axes learned from labels: supervised PCA, Roweis and Fisher discriminants, and their kernel forms.

- ``linear_supervised``, ``kernel_supervised``   the public classes; the first also has the distance to the nearest
  class, the second the fits on Nyström features, or by one sweep
- ``scored_pca``        PCA of the features that depend on the labels most: their scores, their number by
  cross-validation, and the row maps to and from them
- ``roweis_map``        a whole grid of (r1, r2) from one read
- ``model``             the result of linear models with labels, their base, and their methods as classifiers
- ``problems``          a point of the Roweis family as a problem in the statistics of labelled rows, and the labels of
  a fit, checked
- ``label_features``    ``Delta`` with ``K_y = Delta Delta'``: the label kernel is never n x n
- ``statistics``        the statistics of labelled rows, a state that adds up, and what a model keeps of them

Add other features of labels: a ``Problem`` that makes them, which an estimator returns from ``_problem``. Every point
of the family is solved from one read: counts, means, and the within-class scatter, which is accumulated directly. The
family has a solver of its own, beside that of ``linear.pencils``: the identity in R2 is in the units of the columns,
and its rotation serves all points; a pencil has no units, and is solved by a Cholesky factor, in a third of the time.
"""
