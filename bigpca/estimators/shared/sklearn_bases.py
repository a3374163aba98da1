"""Base classes of scikit-learn, which has no types: with bases of type Any, mypy would let our constructors take any
further names, since it could not tell what those bases take.
"""

from __future__ import annotations

MYPY = False  # mypy takes it for true; other checkers have stubs of scikit-learn, and should see its classes

if MYPY:
    from typing import Any

    class BaseEstimator:
        """What the estimators use of it; mypy takes all other names for Any."""

        def __getattr__(self, name: str) -> Any: ...
        def __getstate__(self) -> dict[str, object]: ...
        def __sklearn_clone__(self) -> Any: ...
        def __sklearn_tags__(self) -> Any: ...
        def _repr_html_inner(self) -> str: ...
        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]: ...
        @classmethod
        def _get_param_names(cls) -> list[str]: ...

    class TransformerMixin:
        """Of methods that it adds, each is Any."""

    class ClassifierMixin:
        """Of methods that it adds, each is Any."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin

__all__ = ["BaseEstimator", "ClassifierMixin", "TransformerMixin"]
