"""The quality of an answer, measured against data or against another answer, in planned reads.

- ``metrics``      the public names of ``axes`` (axes and eigenvalues), ``reconstruction`` and ``dot_products``
- ``importance``   the weight of examples in components; features replaced by their neighbours
- ``comparison``   two models: angles, shared variance, the Fréchet distance
- ``extremes``     the rows at both ends of each component
- ``dependence``   the Hilbert-Schmidt independence criterion
- ``standard_errors``   how much eigenvalues and axes vary between samples of rows
- ``memory``       the measured peak of a run above its idle processes
- ``reading``, ``states``   one read of X for a measurement, and the states it is folded into

A measurement opens X, makes a ``Measurement`` (a plan of one read) and folds one of the ``states``; its numbers are
returned as a frozen record. ``dependence`` runs the fits of the supervised estimators instead. Nothing below imports
this package.

Add a measurement: a state in ``states`` with a row of ``CASES`` in the shared accumulator tests, and a function that
calls ``read_once``.
"""
