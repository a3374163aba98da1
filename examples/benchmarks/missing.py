"""Rows with missing values: components by filled means, by pairs of columns, and by maximum likelihood.

usage: python examples/benchmarks/missing.py [--rows 800] [--columns 80] [-k 5] [--shares 0.1 0.3 0.5] [--seeds 3]

Simulates rows of five spectra, and takes entries out of them at random, or in runs of 40 % of the columns ("runs").
Prints one JSON line for each case, with medians of the seeds. For each ``nan_policy``: the sine of the largest angle
between its plane and that of the complete rows, and the first eigenvalue, relative to theirs. For "em" also: the reads
of its iteration until the plane is within 0.1 degrees of the likeliest one (2 stands for fewer, too), those after which
it stopped with the default ``tol``, the angle in degrees that was left, and the first eigenvalue after 5 reads,
relative to the likeliest; after 100 for plain EM in NumPy, without expanded parameters and extrapolation.
"""

import argparse
import json
import warnings

import numpy as np

import bigpca as bp

SPECTRA = {
    "j^-2": lambda d, k: np.arange(1, d + 1) ** -2.0,
    "j^-1": lambda d, k: np.arange(1, d + 1) ** -1.0,
    "spiked": lambda d, k: np.r_[np.linspace(12, 6, k), np.ones(d - k)],
    "weak": lambda d, k: np.r_[np.linspace(1.6, 1.3, k), np.ones(d - k)],
    "low noise": lambda d, k: np.r_[np.linspace(12, 6, k), np.full(d - k, 1e-4)],
}
LEFT = np.sin(np.deg2rad(0.1))
RUN = 0.4  # of the columns that a row lacks, one after the other


def simulate(spectrum: str, gaps: float | None, n: int, d: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Complete rows (n, d), and the same with NaN; ``gaps`` is the share of random ones, or None for runs."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    rows = rng.standard_normal((n, d)) * np.sqrt(SPECTRA[spectrum](d, k)) @ axes
    if gaps is None:
        lacking = (np.arange(d) - rng.integers(0, d, n)[:, None]) % d < RUN * d
    else:
        lacking = rng.random((n, d)) < gaps
    return rows, np.where(lacking, np.nan, rows)


def sine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the largest angle between the planes of orthonormal rows (k, d)."""
    return float(np.linalg.norm(a - a @ b.T @ b, 2))


def fitted(policy: str, rows: np.ndarray, k: int, **how: object) -> bp.PCA:
    """The model by one policy."""
    with warnings.catch_warnings(action="ignore", category=bp.errors.ApproximationWarning):
        return bp.PCA(k, nan_policy=policy, **how).fit(rows)


def plain_em(rows: np.ndarray, k: int, steps: int) -> float:
    """The first eigenvalue after so many steps of plain EM from filled means."""
    there = ~np.isnan(rows)
    x = np.where(there, rows - np.nanmean(rows, axis=0), 0.0)
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    noise, mean = float(values[:-k].mean()), np.zeros(x.shape[1])
    W = vectors[:, -k:] * np.sqrt(np.maximum(values[-k:] - noise, 0))
    for _ in range(steps):
        A = np.einsum("nj,jab->nab", there, W[:, :, None] * W[:, None, :], optimize=True) + noise * np.eye(k)
        inverse = np.linalg.inv(A)
        b = np.ones((len(x), k + 1))
        b[:, :k] = np.einsum("nab,nb->na", inverse, ((x - mean) * there) @ W)
        second = b[:, :, None] * b[:, None, :]
        second[:, :k, :k] += noise * inverse
        Y = x.T @ b
        both = np.linalg.solve(np.einsum("nj,nab->jab", there, second, optimize=True), Y[..., None])[..., 0]
        W, mean, noise = both[:, :k], both[:, k], float(((x**2).sum() - (Y * both).sum()) / there.sum())
    return float(np.linalg.norm(W, 2) ** 2 + noise)


def measured(spectrum: str, gaps: float | None, n: int, d: int, k: int, seed: int, most: int) -> dict[str, float]:
    """What is printed of one case."""
    rows, holed = simulate(spectrum, gaps, n, d, k, seed)
    whole = bp.PCA(k).fit(rows)
    found = {policy: fitted(policy, holed, k) for policy in ("mean", "pairwise")}
    found["em"] = stopped = fitted("em", holed, k, max_passes=most)
    best = fitted("em", holed, k, max_passes=20 * most, tol=1e-8)
    axes = (fitted("em", holed, k, max_passes=m).components_ for m in range(2, most))
    within = (m for m, one in enumerate(axes, 2) if sine(one, best.components_) < LEFT)
    first, likeliest = whole.explained_variance_[0], best.explained_variance_[0]
    return {
        **{f"sine, {name}": sine(one.components_, whole.components_) for name, one in found.items()},
        **{f"first, {name}": one.explained_variance_[0] / first for name, one in found.items()},
        "reads to 0.1 degrees": next(within, np.inf),
        "reads": stopped.provenance_.reads - 2,  # after those of the means and of the start
        "degrees left": float(np.rad2deg(np.arcsin(sine(stopped.components_, best.components_)))),
        "first after 5": fitted("em", holed, k, max_passes=5).explained_variance_[0] / likeliest,
        "first, plain, after 100": plain_em(holed, k, 100) / likeliest,
    }


def main() -> None:
    """Print a line for each spectrum and kind of gaps."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/missing.py [--rows N] [--columns D] [-k K] [--shares SHARE ...] [--seeds S]"
    )
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--spectra", nargs="+", choices=SPECTRA, default=list(SPECTRA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=int, default=60, help="reads of the iteration")
    given = parser.parse_args()
    for spectrum in given.spectra:
        for gaps in [*given.shares, None]:
            size = given.rows, given.columns, given.k
            cases = [measured(spectrum, gaps, *size, seed, given.most) for seed in range(given.seeds)]
            medians = {name: float(np.median([case[name] for case in cases])) for name in cases[0]}
            print(json.dumps({"spectrum": spectrum, "gaps": "runs" if gaps is None else gaps} | medians), flush=True)


if __name__ == "__main__":
    main()
