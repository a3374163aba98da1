"""The quality of an answer, measured against data or against another answer, in planned reads.

- ``metrics``      the front of ``axes`` (axes and eigenvalues), ``reconstruction`` and ``dot_products``
- ``importance``   the weight of examples in components; features replaced by their neighbours
- ``dependence``   the Hilbert-Schmidt independence criterion
- ``memory``       the measured peak of a run above its idle processes
- ``reading``, ``states``   one read of X for a measurement, and the states it is folded into

Everything here uses public estimators and the verbs of ``bigpca.passes``; nothing below imports it.
"""
