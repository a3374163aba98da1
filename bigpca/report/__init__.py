"""A report on a fitted model: one HTML file that says what it is, whether to trust it, and how to go on.

In the order of a call of :func:`write_report`:

- ``records``  What a report says, as records; ``page`` turns them to HTML.
- ``describing``  All that a report says of a model, put together as records; and whether to trust it.
- ``page``  A report as one HTML page: no script, no network, all text escaped, figures as SVG inside of it.

Models are read by their fitted attributes alone: nothing here imports an estimator.
"""

from bigpca.report.describing import describe, write_report

__all__ = ["describe", "write_report"]
