"""How many components: from ``n_components`` and a spectrum, whole or partial, to k."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import closest
from bigpca.solvers.component_rules import (
    ComponentRule,
    Elbow,
    GavishDonoho,
    MarchenkoPastur,
    RelativeThreshold,
)
from bigpca.solvers.minka import minka_rank
from bigpca.solvers.parallel_analysis import ParallelAnalysis

__all__ = [
    "ComponentRule", "Elbow", "GavishDonoho", "MarchenkoPastur", "NComponents", "ParallelAnalysis",
    "RelativeThreshold",
    "check_n_components",
    "decode_components", "encode_components", "needs_full_spectrum", "resolve_components", "resolve_partial",
    "starting_components",
]  # fmt: skip

Vector = NDArray[np.float64]
NComponents = int | float | str | ComponentRule | None

FIRST_GUESS = 64  # components to start with if a rule decides how many
RULES: dict[str, type[ComponentRule]] = {
    "relative_threshold": RelativeThreshold,
    "elbow": Elbow,
    "gavish_donoho": GavishDonoho,
    "marchenko_pastur": MarchenkoPastur,
    "parallel_analysis": ParallelAnalysis,
}  # by their names, "-" or "_"


def by_name(n_components: NComponents) -> NComponents:
    """Return the rule that a name stands for; other choices are returned unchanged.

    >>> by_name("marchenko-pastur"), by_name("mle"), by_name(3)
    (MarchenkoPastur(), 'mle', 3)
    """
    rule = RULES.get(n_components.replace("-", "_")) if isinstance(n_components, str) else None
    return n_components if rule is None or rule is RelativeThreshold else rule()


def check_n_components(n_components: NComponents, n_samples: int | None, n_features: int) -> None:
    """Reject an ``n_components`` that no data of this size can satisfy, before any row is read.

    Parameters
    ----------
    n_components : int in [1, min(n, d)], float in (0, 1), ``"mle"``, a :class:`ComponentRule` or its name, or None.
    n_samples : n; None where it is not known yet.
    n_features : d.

    Raises
    ------
    TypeError
        If it is of another type; booleans are rejected.
    ValueError
        When it is out of range.

    Examples
    --------
    >>> check_n_components(5, 100, 3)
    Traceback (most recent call last):
    ...
    ValueError: n_components = 5 is out of range: 100 samples of 3 features have 1 to 3 components. Use at most 3.
    """
    choice: Any = by_name(n_components)
    if choice is None or isinstance(choice, ComponentRule):
        return
    if isinstance(choice, str):
        _check_mle(choice, n_samples, n_features)
    elif isinstance(choice, bool | np.bool_) or not isinstance(choice, Real):
        raise TypeError(
            f"n_components = {choice!r} is a {type(choice).__name__}, but it must be an int, a float in (0, 1), "
            '"mle", a rule such as RelativeThreshold(1e-3) or None. Give one of these.'
        )
    elif isinstance(choice, Integral):
        largest = n_features if n_samples is None else min(n_samples, n_features)
        if not 1 <= int(choice) <= largest:
            known = "data" if n_samples is None else f"{n_samples} samples"
            raise ValueError(
                f"n_components = {choice} is out of range: {known} of {n_features} features have 1 to {largest} "
                f"components. Use at most {largest}."
            )
    elif not 0 < float(choice) < 1:
        raise ValueError(
            f"n_components = {choice} is a float outside (0, 1), where it means a share of the variance. "
            "Use a share such as 0.95, or an int for a number of components."
        )


def _check_mle(n_components: str, n_samples: int | None, n_features: int) -> None:
    if n_components != "mle":
        names = ("mle", *(name.replace("_", "-") for name in RULES if name != "relative_threshold"))
        raise ValueError(
            f"n_components = {n_components!r} is not known; the rules with a name are {', '.join(map(repr, names))}."
            f"{closest(n_components, names)}"
        )
    if n_samples is not None and n_samples < n_features:
        raise ValueError(
            f'n_components = "mle" needs at least as many samples as features, but there are {n_samples} samples of '
            f"{n_features} features. Use a share such as 0.95, or an int."
        )


def needs_full_spectrum(n_components: NComponents) -> bool:
    """Whether the choice can be made only with every eigenvalue at hand (anything but a given number).

    Examples
    --------
    >>> needs_full_spectrum(0.95), needs_full_spectrum(64)
    (True, False)
    """
    return not isinstance(n_components, Integral)


def resolve_components(
    n_components: NComponents, eigenvalues: Vector, total: float, n_samples: int, n_features: int,
    weight: float | None = None, columns: Vector | None = None,
) -> int:  # fmt: skip
    """Turn ``n_components`` into the number k of components to keep.

    None gives min(n, d). A share p gives the smallest k with (lambda_1 + ... + lambda_k) / total > p, as scikit-learn
    counts it, over the true total. ``"mle"`` gives :func:`bigpca.solvers.minka.minka_rank`. A rule that finds no
    component gives 1, and so does data without variance.

    Parameters
    ----------
    n_components : as in :func:`check_n_components`, which is called first.
    eigenvalues : ndarray of shape (r,), descending; the leading ones may do for a share or a rule.
    total : float
        Sum of all eigenvalues (the total variance, known exactly even when only some eigenvalues are).
    n_samples, n_features : int
    weight : float or None
        Sum of the weights of weighted rows, which "mle", :class:`GavishDonoho` and :class:`MarchenkoPastur` take for
        the number of observations; the other choices depend on the number of rows alone. None for rows without weights.
    columns : ndarray of shape (d,), or None
        Variances of the columns, for :class:`ParallelAnalysis`; None if they are not known.

    Returns
    -------
    int
        In [1, min(n, d)].

    Raises
    ------
    ValueError, TypeError
        As :func:`check_n_components`; and when the given eigenvalues do not reach far enough to decide.

    Examples
    --------
    >>> resolve_components(0.9, np.array([6.0, 3.0, 1.0]), 10.0, 100, 3)
    3
    """
    check_n_components(n_components, n_samples, n_features)
    n_components = by_name(n_components)
    largest = min(n_samples, n_features)
    if n_components is None:
        return largest
    if isinstance(n_components, Integral):
        return int(n_components)
    given = eigenvalues[:largest]
    if len(given) < largest:
        _reject_partial(n_components, largest, f"{len(given)} are given")
    if isinstance(n_components, ComponentRule):
        n_components = n_components.for_columns(columns)
    k = _choose(n_components, given, total, n_samples, n_features, weight)
    if k is None:
        raise ValueError(
            f"{n_components} is not reached within the {len(given)} eigenvalues that are given, of {largest}. Use a "
            "solver that computes the whole spectrum, or an int."
        )
    return k


def resolve_partial(
    n_components: NComponents, values: Vector, total: float, n: int, d: int, weight: float | None = None
) -> int | None:
    """Turn ``n_components`` into k from the leading eigenvalues, where they tell: what a solver of some pairs asks.

    Parameters
    ----------
    n_components : as in :func:`check_n_components`, which is called first.
    values : ndarray of shape (r,), descending
        The largest eigenvalues; all of them where r = min(n, d). Converged ones: a value that is still too small looks
        like the end of the signal to a threshold, an edge or an elbow, which then decide too early.
    total : float
        Sum of all eigenvalues.
    n, d : int
        Samples and features.
    weight : float or None
        As for :func:`resolve_components`.

    Returns
    -------
    int or None
        k in [1, min(n, d)], the same that the whole spectrum would give; None where more eigenvalues are needed (there
        are fewer than the number requested, the share is not reached, or the rule is undecided).

    Raises
    ------
    ValueError, TypeError
        As :func:`check_n_components`; and, with r < min(n, d), for the choices that need every eigenvalue: None, "mle"
        and :class:`GavishDonoho` of unknown noise.

    Examples
    --------
    >>> resolve_partial(0.9, np.array([6.0, 2.0]), 10.0, 100, 5) is None
    True
    >>> resolve_partial(0.9, np.array([6.0, 2.0, 1.5]), 10.0, 100, 5)
    3
    """
    check_n_components(n_components, n, d)
    n_components = by_name(n_components)
    largest, given = min(n, d), values[: min(n, d)]
    choice: Any = n_components
    if isinstance(choice, Integral):
        return int(choice) if int(choice) <= len(given) else None
    if len(given) == largest:
        return resolve_components(n_components, given, total, n, d, weight)
    _reject_partial(n_components, largest, f"this solver has computed {len(given)}")
    return _choose(n_components, given, total, n, d, weight)


def starting_components(n_components: NComponents, n: int, d: int) -> int:
    """Return how many components to compute first where :func:`resolve_partial` will decide.

    A given number is itself; a share or a rule begins with min(64, n, d). Call it before any row is read: it rejects
    what no partial spectrum can decide.

    Raises
    ------
    ValueError, TypeError
        As :func:`resolve_partial`.

    Examples
    --------
    >>> starting_components(10, 1000, 500), starting_components(0.95, 1000, 500), starting_components(0.95, 1000, 20)
    (10, 64, 20)
    """
    check_n_components(n_components, n, d)
    choice: Any = n_components
    if isinstance(choice, Integral):
        return int(choice)
    first = min(FIRST_GUESS, n, d)
    if first < min(n, d):
        _reject_partial(by_name(n_components), min(n, d), "this solver computes only the leading ones")
    return first


def partial_will_do(n_components: NComponents, n: int, d: int) -> bool:
    """Whether the leading eigenvalues are enough for ``n_components``; :func:`starting_components` rejects the others.

    Examples
    --------
    >>> partial_will_do(10, 1000, 500), partial_will_do("mle", 1000, 500)
    (True, False)
    """
    try:
        starting_components(n_components, n, d)
    except ValueError:
        return False
    return True


def _choose(
    n_components: NComponents, values: Vector, total: float, n: int, d: int, weight: float | None
) -> int | None:
    """Choose k from r leading eigenvalues; None where they do not tell. The number and the whole are handled before."""
    observations = n if weight is None else max(2, round(weight))
    if isinstance(n_components, str):
        return minka_rank(values, observations)
    if not len(values):
        return None
    if total <= 0 or values[0] <= 0:
        return 1
    if isinstance(n_components, ComponentRule):
        k = n_components.choose(values, total, observations if n_components.by_weight else n, d)
        return None if k is None else max(k, 1)
    share: Any = n_components
    k = int(np.searchsorted(np.cumsum(values / total), share, side="right")) + 1
    if k > len(values) and len(values) < min(n, d):
        return None
    return min(k, len(values))


def _reject_partial(n_components: NComponents, largest: int, given: str) -> None:
    if n_components is None:
        name, because = "n_components = None", "it keeps them all"
    elif isinstance(n_components, str):
        name, because = f'n_components = "{n_components}"', "it weighs every number of components against the rest"
    elif isinstance(n_components, ComponentRule) and n_components.whole_spectrum_because is not None:
        name, because = f"n_components = {n_components}", n_components.whole_spectrum_because
    else:
        return
    raise ValueError(
        f"{name} needs all {largest} eigenvalues, but {given}: {because}. Use a solver that computes the whole "
        "spectrum, an int, or a share such as 0.95."
    )


def encode_components(n_components: NComponents) -> Any:
    """Return ``n_components`` as a JSON value: itself, or ``{name of the rule: its parameter, or a list of several}``.

    Raises
    ------
    TypeError
        For a rule that is not bigpca's own.

    Examples
    --------
    >>> encode_components(RelativeThreshold(0.1)), encode_components(Elbow()), encode_components(np.int64(3))
    ({'relative_threshold': 0.1}, {'elbow': None}, 3)
    """
    if isinstance(n_components, ComponentRule):
        names = [name for name, rule in RULES.items() if type(n_components) is rule]
        if not names:
            raise TypeError(
                f"n_components = {n_components!r} cannot be saved: one of {', '.join(RULES)} was expected, which can "
                "be read back anywhere. Fit with the int that it chose."
            )
        parameters = [_plain(getattr(n_components, name)) for name in _parameters(type(n_components))]
        return {names[0]: parameters if len(parameters) > 1 else parameters[0] if parameters else None}
    return _plain(n_components)


def decode_components(value: Any) -> Any:
    """Return ``n_components`` as it was given, from its JSON form.

    Raises
    ------
    ValueError
        For a rule that is not known.

    Examples
    --------
    >>> decode_components({"gavish_donoho": None}), decode_components(0.95)
    (GavishDonoho(noise_variance=None), 0.95)
    """
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not set(value) <= set(RULES):
        raise ValueError(f"n_components = {value} is no rule; one of {', '.join(RULES)} was expected.")
    ((name, parameter),) = value.items()
    rule: Any = RULES[name]
    if not _parameters(rule):
        return rule()
    return rule(*parameter) if isinstance(parameter, list) else rule(parameter)


def _parameters(rule: Any) -> list[str]:
    return [one.name for one in fields(rule) if one.init]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
