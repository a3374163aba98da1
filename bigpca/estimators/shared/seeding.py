"""The seed of a fit: given as ``random_state``, drawn, or read from the checkpoint that a rerun resumes."""

from __future__ import annotations

import os
from typing import TypeAlias

import numpy as np

from bigpca.passes.engine.checkpoint import stored_seed
from bigpca.seeds import check_seed, draw_seed, draws_seed

RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def fit_seed(estimator: object) -> int:
    """Return the seed that ``random_state`` states, or the one that the last fit drew (0 before any fit).

    Raises
    ------
    TypeError, ValueError
        If ``random_state`` is not a random state.
    """
    given = getattr(estimator, "random_state", 0)
    return int(vars(estimator).get("seed_", 0)) if draws_seed(given) else check_seed(given, "random_state")


def draw_fit_seed(estimator: object, checkpoint: str | os.PathLike[str] | None = None) -> int:
    """Return the seed of a new fit; if one is drawn, a seed in the checkpoint replaces it, so that the fit resumes."""
    given = getattr(estimator, "random_state", 0)
    drawn = draw_seed(given)
    held = stored_seed(checkpoint) if checkpoint is not None and draws_seed(given) else None
    return drawn if held is None else held
