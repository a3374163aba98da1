"""Linear maps of fitted models for other libraries, each imported only where it is asked for.

- ``linear``  Linear maps of rows as fitted models give them to other libraries: ONNX, NumPy, torch, FAISS.
- ``sklearn``  A fitted model as transformers of scikit-learn.

The estimators call these from methods in ``estimators/shared/transformer.py``. Add a library: a function of a
``LinearMap`` here, a method there, and a test in ``tests/estimators/shared/test_exporting.py``.
"""
