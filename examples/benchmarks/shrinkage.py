"""Scores of new rows where rows are few beside columns: none, OADP and factors, against two truths, by simulation.

usage: python examples/benchmarks/shrinkage.py [--rows 200] [--columns 4000] [--new 40] [--seed 0]

Rows of the fit are four signals and noise. New rows are of the same kind, except for what a case changes in them. Two
things can be asked of the score of a new row, and they differ as soon as its noise is not that of the fit:

- refit   its score in a PCA of the rows of the fit and this row, turned and scaled to the fit by the rows of the fit.
          Its own noise draws the axes towards it, the more the noisier it is.
- place   where rows of the fit with the same signals lie on average, whatever its noise is: what compares new rows with
          clusters or populations of the fit.

Prints for each case the least and largest shrinkage factor, and for each truth and correction the slope of the scores
against it and their relative error, averaged over the components (slopes) and in root mean square (errors). The error
of "place" includes the noise of the row itself, which no correction removes. The refit of an incomplete row is that of
the row before its values were lost.
"""

import argparse
import warnings
from typing import Any

import numpy as np

import bigpca as bp

STRONG = (80.0, 60.0, 40.0, 30.0)  # variances of the signals; the noise of each column has 1
CASES: dict[str, dict[str, Any]] = {
    "equal noise": {},
    "noise of new rows x 1.6": {"noise": (1.6,)},
    "noise of new rows x 0.6": {"noise": (0.6,)},
    "noise of new rows x 0.6 to 1.6": {"noise": (0.6, 1.6)},
    "noise of all rows x 0.6 or 1.3": {"noise": (0.6, 1.3), "unequal": True},
    "batch: new rows shifted": {"shift": 1.0},
    "30 % missing": {"missing": 0.3},
    "80 % missing": {"missing": 0.8},
    "a near tie": {"signals": (80.0, 60.0, 40.0, 39.9)},
    "a near tie, cut": {"signals": (80.0, 60.0, 40.0, 39.9), "k": 3},
    "weak signals (f below 0.5)": {"signals": (80.0, 20.0, 10.0, 6.0)},
    "12 components of 4 signals": {"k": 12},
    "siblings of rows of the fit": {"kin": 0.5},
    "rows of the fit themselves": {"kin": 1.0},
}


def simulate(
    rng: np.random.Generator,
    rows: int,
    columns: int,
    new: int,
    *,
    signals: tuple[float, ...] = STRONG,
    noise: tuple[float, ...] = (1.0,),
    unequal: bool = False,
    shift: float = 0.0,
    kin: float = 0.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the fit (n, d), new rows (b, d), and the signals of both."""
    axes = np.linalg.qr(rng.standard_normal((columns, len(signals))))[0] * np.sqrt(signals)
    T, E = rng.standard_normal((rows, len(signals))), rng.standard_normal((rows, columns))
    T_new, E_new = rng.standard_normal((new, len(signals))), rng.standard_normal((new, columns))
    if unequal:
        E *= rng.choice(noise, rows)[:, None]
    of_each = rng.choice(noise, new) if unequal else np.linspace(noise[0], noise[-1], new)
    # A share of what a new row is comes from a row of the fit: half of it for siblings, all for the row itself.
    own, theirs = np.sqrt(1 - kin), np.sqrt(kin)
    T_new = theirs * T[:new] + own * T_new
    Y = T_new @ axes.T + theirs * E[:new] + own * of_each[:, None] * E_new + shift * rng.standard_normal(columns)
    return T @ axes.T + E, Y, T, T_new


def refitted(X: np.ndarray, Y: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Scores (b, k) of each row of Y in a PCA of X and that row, by Procrustes' rotation and scale to ``scores``."""
    n, k = scores.shape
    both = np.vstack([X, Y]) - X.mean(axis=0)
    G, found = both @ both.T, np.empty((len(Y), k))
    for j in range(len(Y)):
        own = np.append(np.arange(n), n + j)
        mine = G[np.ix_(own, own)]
        mine = mine - mine.mean(axis=0) - mine.mean(axis=1)[:, None] + mine.mean()
        values, vectors = np.linalg.eigh(mine)
        B = vectors[:, -k:] * np.sqrt(values[-k:])
        B -= B[:n].mean(axis=0)
        P, length, R = np.linalg.svd(scores.T @ B[:n])
        found[j] = length.sum() / (B[:n] ** 2).sum() * (P @ R @ B[n])
    return found


def judged(found: np.ndarray, truth: np.ndarray) -> str:
    """Slope of the scores against a truth, and their relative error."""
    squares = (truth**2).sum(axis=0)
    slope = ((found * truth).sum(axis=0) / squares).mean()
    return f"{slope:5.2f} {np.sqrt((((found - truth) ** 2).sum(axis=0) / squares).mean()):6.3f}"


def main() -> None:
    """Print the table, a case in each line."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/shrinkage.py [--rows N] [--columns D] [--new ROWS] [--seed SEED]",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--columns", type=int, default=4_000)
    parser.add_argument("--new", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore", bp.errors.ApproximationWarning)  # of factors below 0.5, which are printed
    corrections = (None, "oadp", "factor")
    print(f"{'slope and error against':41}{'the refit':^42}{'the place':^42}")
    print(f"{'case':32}{'factors':9}" + 2 * "".join(f"{one or 'none':>14}" for one in corrections))
    for name, case in CASES.items():
        own = {key: value for key, value in case.items() if key not in ("k", "missing")}
        rng = np.random.default_rng(given.seed)
        X, Y, T, T_new = simulate(rng, given.rows, given.columns, given.new, **own)
        k = case.get("k", T.shape[1])
        model = bp.PCA(k, solver="dot").fit(X).set_params(nan_policy="mean")
        of_fit, signals = model.transform(X), min(k, T.shape[1])
        seen = np.where(rng.random(Y.shape) < case.get("missing", 0.0), np.nan, Y)
        place = T_new @ np.linalg.lstsq(T - T.mean(axis=0), of_fit[:, :signals], rcond=None)[0]
        refit = refitted(X, Y, of_fit)
        scores = [model.transform(seen, shrinkage=one) for one in corrections]
        cells = [judged(one, refit) for one in scores]
        cells += [judged(one[:, :signals], place) for one in scores]
        least, most = model.shrinkage_factors_.min(), model.shrinkage_factors_.max()
        print(f"{name:32}{least:.2f}-{most:.2f}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
