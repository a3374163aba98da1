"""Linear maps of fitted models for other libraries, each imported only where it is asked for.

- ``linear``      the record ``LinearMap``: rows minus a centre, times a matrix; and (A, b) of it
- ``sklearn``     a PCA of scikit-learn, or a Pipeline
- ``networks``    a file of ONNX or NumPy, a layer of torch, a transform of FAISS

The estimators call these from the methods in ``estimators/shared/exporting.py``. Add a library: a function of a
``LinearMap`` here, a method there, and a test in ``tests/estimators/shared/test_exporting.py``.
"""
