"""The quality of an answer, measured against data or against another answer, in planned reads.

- ``metrics``  How well an approximation agrees with the original: axes, eigenvalues, reconstructions, dot products.
- ``importance``  The weight of examples in components, and the effect on eigenvalues of replacing features by their
  neighbours.
- ``comparison``  Two fitted models compared: their axes, and the distributions of their rows.
- ``extremes``  The rows at both ends of each component.
- ``dependence``  The dependence of rows on their labels: the Hilbert-Schmidt independence criterion.
- ``standard_errors``  How much eigenvalues and axes would vary between samples of rows: standard errors from
  influence functions.
- ``memory``  Measured memory: the peak of a run above the memory of its processes at the start.
- ``measurement``  One planned read of X for a measurement, of all rows or of chosen ones, and the states that it
  fills.

A measurement opens X, makes a ``Measurement`` (a plan of one read) and folds one of the ``states``; its numbers are
returned as a frozen record. ``dependence`` runs the fits of the supervised estimators instead. Nothing below imports
this package.

Add a measurement: a state in ``states`` with a row of ``CASES`` in the shared accumulator tests, and a function that
calls ``read_once``.
"""
