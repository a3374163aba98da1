"""A report on a fitted model: one HTML file that says what it is, whether to trust it, and how to go on.

In the order of a call of :func:`write_report`:

- ``records``     what a report says, as frozen records: ``Report``, ``Light``, ``Extreme``, ``Table``
- ``companions``  classes, keys and pictures of the rows, from arrays or a file of labels
- ``extremes``    one read of the scores: the rows to draw, and those with the lowest and highest scores
- ``lights``      whether the answer converged, is certified, flat, dominated by a column, or of too few rows
- ``methods``     the paragraph for a paper, and its citations; how the model was made
- ``describing``  all of it put together: a model to a ``Report``
- ``figures``     figures of ``bigpca.plots`` as SVG that follows the colours of the page
- ``page``        a ``Report`` to HTML, with all text escaped; ``page.css`` beside it

Models are read by their fitted attributes alone: nothing here imports an estimator.
"""

from bigpca.report.describing import describe, write_report

__all__ = ["describe", "write_report"]
