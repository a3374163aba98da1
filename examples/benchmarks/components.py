"""Rules for the number of components of rows of rank 6 in noise of several kinds, over several draws.

usage: python examples/benchmarks/components.py [--draws 8] [--rows 400] [--limit 29] [--search 50000]

60 columns. Prints, for each kind of noise, the least and the largest number that each rule chose: cross-validation by
the columns of left-out rows, and by their likelihood, with at most --limit components; Minka's, Marchenko-Pastur,
Gavish-Donoho, parallel analysis and the elbow. Cross-validation counts noise that is correlated between columns.

With --search N, it times N rows by the likelihood of left-out rows, with five folds and at most 20 components: one read
here, and 101 fits of scikit-learn's ``GridSearchCV``.
"""

import argparse
import json
import time

import numpy as np
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, KFold

import bigpca as bp
from bigpca.rules import CrossValidated

D, K = 60, 6


def planted(kind: str, n: int, seed: int) -> np.ndarray:
    """Rows (n, 60) of rank 6, and noise."""
    rng = np.random.default_rng(seed)
    axes, noise = np.linalg.qr(rng.standard_normal((D, K)))[0], rng.standard_normal((n, D))
    if kind.startswith("unequal"):
        noise *= np.sqrt(rng.uniform(0.2, 3, D))
    elif kind == "correlated":
        noise @= np.linalg.cholesky(0.6 ** np.abs(np.subtract.outer(np.arange(D), np.arange(D)))).T
    deviations = np.linspace(2.5, 1.5, K) if kind == "weak" else np.linspace(5, 2, K)
    rows = rng.standard_normal((n, K)) * deviations @ axes.T + noise
    return rows * np.sqrt(4 / rng.chisquare(6, n))[:, None] if kind == "heavy tails" else rows


def search(n: int, most: int = 20) -> dict[str, object]:
    """Processor seconds, and the number of components, of one read and of a search by scikit-learn."""
    X, found = planted("unequal", n, 0), dict[str, object]()
    rule = CrossValidated(cv=5, criterion="likelihood", max_components=most)
    grid = GridSearchCV(PCA(svd_solver="covariance_eigh"), {"n_components": range(1, most + 1)}, cv=KFold(5))
    for name, model in (("bigpca", bp.PCA(rule, solver="covariance")), ("scikit-learn", grid)):
        model.fit(X[:500])  # imports
        began = time.process_time()
        model.fit(X)
        chosen = model.n_components_ if name == "bigpca" else model.best_params_["n_components"]
        found[name] = {"cpu_s": round(time.process_time() - began, 2), "n_components": int(chosen)}
    return found


def main() -> None:
    """Fit each draw by each rule, and print a line for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--limit", type=int, default=29)
    parser.add_argument("--search", type=int, default=0)
    given = parser.parse_args()
    if given.search:
        print(json.dumps({"rows": given.search, **search(given.search)}))
        return
    rules = {name: CrossValidated(criterion=name, max_components=given.limit) for name in ("column", "likelihood")}
    named = ("mle", "marchenko-pastur", "gavish-donoho", "parallel-analysis", "elbow")
    for kind in ("white", "unequal", "unequal, 5 times the rows", "heavy tails", "weak", "correlated"):
        n = 5 * given.rows if "times" in kind else given.rows
        draws = [planted(kind, n, seed) for seed in range(given.draws)]
        line: dict[str, object] = {"noise": kind, "rows": n}
        for name, rule in {**rules, **{name: name for name in named}}.items():
            found = [bp.PCA(rule, solver="covariance").fit(X).n_components_ for X in draws]
            line[name] = [min(found), max(found)]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
