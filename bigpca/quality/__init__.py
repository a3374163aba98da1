"""The quality of an answer, measured against data or against another answer, in planned reads.

- ``metrics``  How well two answers agree: axes, eigenvalues, reconstructions, dot products; and two fitted models as
  wholes.
- ``importance``  What components are made of: weights of examples, rows at both ends, and features that neighbours can
  replace.
- ``standard_errors``  How much eigenvalues and axes would vary between samples of rows: standard errors from
  influence functions.
- ``memory``  Measured memory: the peak of a run above the memory of its processes at the start.
- ``measurement``  One planned read of X for a measurement, of all rows or of chosen ones, and the states that it
  fills.

A measurement opens X, makes a ``Measurement`` (a plan of one read) and folds one of its states; its numbers are
returned as a frozen record. Nothing below imports this package.

Add a measurement: a state in ``measurement`` with a row of ``CASES`` in the shared accumulator tests, and a function
that calls ``read_once``.
"""
