"""Axes learned from labels: supervised PCA, Roweis and Fisher discriminants, and their kernel forms.

- ``supervised_pca``, ``scored_pca``, ``discriminants``, ``kernel_supervised``   the public classes
- ``roweis_map``        a whole grid of (r1, r2) from one read
- ``model``             what linear models with labels share
- ``problems``, ``roweis_problem``   what is solved from the statistics of labelled rows, linear or under a kernel
- ``labels``            labels on their way into a fit, and what a model keeps of them
- ``label_features``    ``Delta`` with ``K_y = Delta Delta'``: the label kernel is never n x n
- ``statistics``        what one read of labelled rows adds up to
- ``choosing``          the exact fit or the iteration
- ``labels_fit``, ``krylov_fit``   from one read of labels, and by iteration where no (d, d) matrix fits
- ``kernel_fit``, ``scores_fit``   on Nyström features, and the reads of scored PCA
- ``scores``, ``columns``   how much each feature depends on the labels, and row maps to the chosen ones

Add a problem: a frozen record with its checks, its need of the labels and how it solves; an estimator returns it from
``_problem``. All of the family is solved from one read: counts, means, and the within-class scatter, which is
accumulated directly.
"""
