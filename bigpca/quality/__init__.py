"""How good an answer is: measured against data or against another answer, in planned reads.

- ``metrics``      agreement of axes, eigenvalues, reconstructions and dot products
- ``importance``   which rows make a component; features replaced by their neighbours
- ``dependence``   the Hilbert-Schmidt independence criterion
- ``memory``       the measured peak of a run over its idle processes
- ``plots``        pictures of models; needs matplotlib (``bigpca[plot]``)
- ``reading``, ``states``   one read of X for a measurement, and what it is folded into

Everything here uses public estimators and the verbs of ``bigpca.passes``; nothing below imports it.
"""
