"""Public names that are imported on first use, so that a program loads only what it uses."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Names are looked for in all of them.
ROOMS = ("data", "errors", "preprocessing", "quality", "rules", "scales")


def lazily(
    package: str,
    homes: Mapping[str, str],
    modules: Sequence[str] = (),
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose public names are defined elsewhere.

    Parameters
    ----------
    package : str
        Its name.
    homes : mapping of str to str
        For each module that defines some of them, their names, separated by spaces.
    modules : sequence of str
        Modules of the package that are public as such.
    elsewhere : mapping of str to str
        For names of other libraries, what to use here.

    Examples
    --------
    >>> import bigpca.preprocessing
    >>> get, names, _ = lazily("bigpca.preprocessing", {"bigpca.passes.reading.row_maps": "L2 Power"})
    >>> names(), get("L2").__name__
    (['L2', 'Power'], 'L2')
    """
    home = {name: module for module, names in homes.items() for name in names.split()}
    public = sorted({*home, *modules})

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home:
            from difflib import get_close_matches

            # "from bigpca import blas" asks here first, before it looks for a file.
            files = "__path__" in vars(sys.modules[package])
            internal = name.startswith("_") or (files and find_spec(f"{package}.{name}"))
            near, rooms = get_close_matches(name, public, 1), () if internal else ROOMS
            there = [f"bp.{room}.{name}" for room in rooms if name in import_module(f"bigpca.{room}").__all__]
            found = elsewhere.get(name) or next(iter(there), None)
            hint = f" Use {found}." if found else f" Did you mean {near[0]}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}", name=name)
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return get, lambda: public, public


def deprecated(since: str, instead: str = "", **renamed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep what a release promised for one more minor version, with a FutureWarning, as scikit-learn does.

    Parameters
    ----------
    since : str
        The version that first warns; the next minor one may remove it.
    instead : str
        What to use in place of the function. Without it, only parameters are deprecated.
    **renamed : str
        Old names of parameters, with the new ones.

    Examples
    --------
    >>> @deprecated("0.2", alphas="alpha")
    ... def fitted(X, alpha=1.0):
    ...     return alpha
    >>> with warnings.catch_warnings(action="ignore"):
    ...     fitted(0, alphas=2.0)
    2.0
    """

    def told(call: Callable[P, R]) -> Callable[P, R]:
        @wraps(call)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            old = [(name, new) for name, new in renamed.items() if name in kwargs]
            for name, new in old:
                if new in kwargs:
                    raise TypeError(f"{call.__qualname__} was given {name} and {new}, its new name. Give {new} only.")
                kwargs[new] = kwargs.pop(name)
            for what, new in [*old, *([(call.__qualname__, instead)] if instead else [])]:
                warnings.warn(
                    f"{what} is deprecated since bigpca {since}, and will be removed after that minor version. "
                    f"Use {new}.",
                    FutureWarning,
                    stacklevel=2,
                )
            return call(*args, **kwargs)

        return wrapper

    return told
