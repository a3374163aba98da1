"""Axes learned from labels: supervised PCA, Roweis and Fisher discriminants, and their kernel forms.

- ``supervised_pca``, ``scored_pca``, ``discriminants``, ``kernel_supervised``   the public classes
- ``roweis_map``        a whole grid of (r1, r2) from one read
- ``model``             the base of linear models with labels
- ``classifying``       methods of those that are classifiers
- ``problems``, ``roweis_problem``   the problems in the statistics of labelled rows, linear or with a kernel
- ``labels``            the labels of a fit, checked, in the form that a pass reads
- ``kept``              what a model keeps of labelled rows: more rows are added to it, and models merged
- ``label_features``    ``Delta`` with ``K_y = Delta Delta'``: the label kernel is never n x n
- ``statistics``        the statistics from one read of labelled rows
- ``class_distance``    the distance to the nearest class
- ``choosing``          the exact fit or the iteration
- ``labels_fit``, ``krylov_fit``   fits from one read of labelled rows, or by iteration if no (d, d) matrix fits
- ``kernel_fit``, ``dual_fit``, ``scores_fit``   fits on Nyström features, by one sweep, and the reads of scored PCA
- ``scores``, ``columns``   how much each feature depends on the labels, and row maps to the chosen ones
- ``selection``         how many are chosen by cross-validation

Add a problem: a frozen record with its checks, its requirements on labels and its solve; an estimator returns it from
``_problem``. Every problem of the family is solved from one read: counts, means, and the within-class scatter, which is
accumulated directly.
"""
