"""Which estimator a command line names, and what its constructor takes, read from its source without importing it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import typer

import bigpca
from bigpca import HOMES

# What is asked for -> the estimator. A new estimator is one row.
ESTIMATORS = {
    ("pca",): "PCA",
    ("pca", "sketch"): "ApproximatePCA",
    ("pca", "kernel"): "KernelPCA",
    ("pca", "kernel", "landmarks"): "NystromKernelPCA",
    ("pca", "kernel", "sketch"): "ApproximateKernelPCA",
    ("fisher",): "FisherDiscriminantAnalysis",
    ("roweis",): "RoweisDiscriminantAnalysis",
    ("roweis", "kernel"): "KernelRoweisDiscriminantAnalysis",
    ("roweis", "kernel", "landmarks"): "KernelRoweisDiscriminantAnalysis",
    ("supervised",): "SupervisedPCA",
    ("supervised", "kernel"): "KernelSupervisedPCA",
    ("supervised", "kernel", "landmarks"): "KernelSupervisedPCA",
    ("random-projection",): "SupervisedRandomProjection",
    ("scored",): "ScoredPCA",
}
METHODS = tuple(dict.fromkeys(method for method, *_ in ESTIMATORS))
PCA = "pca"  # the one method without labels
# Options that are not called as the parameter they set.
PARAMETERS = {
    "seed": "random_state",
    "landmarks": "n_landmarks",
    "features": "n_features",
    "select": "n_features_to_select",
    "scale_by": "scale",
    "whitening": "whiten",
}


def estimator_of(method: str, **variants: Any) -> str:
    """Return the name of the estimator of a method in the variants whose options are given.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
    **variants : the values of ``--kernel``, ``--landmarks`` and ``--sketch``; None if an option is not given.

    Raises
    ------
    typer.BadParameter
        If the method has no such variant; lists those that exist.

    Examples
    --------
    >>> estimator_of("pca", kernel="rbf", landmarks=100), estimator_of("fisher")
    ('NystromKernelPCA', 'FisherDiscriminantAnalysis')
    """
    key = (method, *(name for name, value in variants.items() if value is not None))
    if key in ESTIMATORS:
        return ESTIMATORS[key]
    if "landmarks" in key and "kernel" not in key:
        raise typer.BadParameter(
            "--landmarks requires --kernel. Add one, such as --kernel rbf, or leave out --landmarks."
        )
    possible = [" ".join(f"--{name}" for name in own) or "neither" for one, *own in ESTIMATORS if one == method]
    given = " and ".join(f"--{name}" for name in key[1:])
    others = [one for one in METHODS if (one, *key[1:]) in ESTIMATORS]
    instead = f" With {given}: --method {' or '.join(others)}." if others else ""
    raise typer.BadParameter(f"--method {method} has no form with {given}; it takes {', '.join(possible)}.{instead}")


@cache
def parameters_of(name: str) -> dict[str, str | None]:
    """Return the parameters of an estimator's constructor with their defaults as source text.

    Parameters
    ----------
    name : str
        Public name of the class.

    Returns
    -------
    dict of str to str, or to None for a default that is not a literal

    Examples
    --------
    >>> found = parameters_of("PCA")
    >>> found["solver"], found["tol"], found["n_components"]
    ("'auto'", '0.001', 'None')
    """
    path = Path(bigpca.__file__).parent.joinpath(*HOMES[name].split(".")[1:]).with_suffix(".py")
    with path.open(encoding="utf-8") as file:
        tree = ast.parse(file.read())
    of_class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    made = next(node for node in of_class.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    positional = zip(made.args.args[-len(made.args.defaults) or len(made.args.args) :], made.args.defaults, strict=True)
    named = zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
    return {argument.arg: _literal(default) for argument, default in (*positional, *named)}


def _literal(node: ast.expr | None) -> str | None:
    try:
        return None if node is None else repr(ast.literal_eval(node))
    except ValueError:
        return None


def default_of(option: str) -> str | None:
    """Return the default that the estimators give to an option's parameter, for display; None if it is unset or hidden.

    >>> default_of("tol"), default_of("max_passes"), default_of("memory_limit")
    ('0.001', '10; fisher, roweis: 20', None)
    """
    parameter = PARAMETERS.get(option, option)
    methods: dict[str, list[str]] = {}
    for (method, *_), name in ESTIMATORS.items():
        default = parameters_of(name).get(parameter)
        if default not in (None, "None", "False"):
            value = ast.literal_eval(default)
            shown = f"{value:g}".replace("e+", "e") if isinstance(value, float) else str(value)
            methods.setdefault(shown, []).append(method)
    first, *others = methods.items() or [("", [])]
    listed = [f"{', '.join(dict.fromkeys(names))}: {value}" for value, names in others]
    return "; ".join([first[0], *listed]) or None
