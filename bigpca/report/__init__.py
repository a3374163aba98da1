"""A report on a fitted model: one HTML file that says what it is, whether to trust it, and how to go on.

In the order of a call of :func:`write_report`:

- ``describing``  All that a report says of a model, put together as records; and whether to trust it.
- ``page``  What a report says, as records, and the HTML page of them: no script, no network, all text escaped.

Models are read by their fitted attributes alone: nothing here imports an estimator.
"""

from bigpca.report.describing import describe, write_report

__all__ = ["describe", "write_report"]
