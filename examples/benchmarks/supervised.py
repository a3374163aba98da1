"""Labelled rows against PCA of the same rows: time, memory and reads of one pass, and of a whole map of (r1, r2).

usage: python examples/benchmarks/supervised.py [--shape 1000000x512] [--classes 1000] [--rounds 2] [CONTENDER ...]

Writes rows of so many classes about their means in a spectrum that decays, float32, and their labels beside them,
unless they are there; then runs the contenders in turn, each in a process of its own, and prints every run and the
medians. "x PCA" is seconds over those of bigpca-pca, the exact PCA by the covariance. Ends with one JSON line.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contenders import main as run_one
from contenders import run_apart, timed
from dump import write_rows
from reading import open_counted

CHUNK_BYTES = 16 << 20
COLUMNS = (  # head, number, format
    ("seconds", "seconds", ".2f"), ("cpu", "cpu_s", ".2f"), ("x PCA", "over_pca", ".2f"),
    ("MiB over idle", "peak_mib", ".0f"), ("MiB in all", "whole_mib", ".0f"), ("reads of X", "reads", ".2f"),
)  # fmt: skip


def labels_of(store: str) -> np.ndarray:
    """The labels beside a store."""
    return np.load(Path(store).with_suffix(".labels.npy"))


def fit_model(make: Callable[[Any], Any], store: str, k: int, **_: str) -> dict:
    """Time a fit to rows and labels."""
    X, reads = open_counted(store)
    y = labels_of(store)
    return timed(lambda: _values(make(k).fit(X, y)), reads)


def _values(model: Any) -> np.ndarray:
    return getattr(model, "eigenvalues_", getattr(model, "explained_variance_", np.zeros(1)))


def pca(k: int) -> Any:
    import bigpca as bp

    return bp.PCA(k, solver="covariance")


def fisher(k: int) -> Any:
    import bigpca as bp

    return bp.FisherDiscriminantAnalysis(k)


def roweis(k: int) -> Any:
    import bigpca as bp

    return bp.RoweisDiscriminantAnalysis(k, r1=0.5, r2=0.5)


def supervised_pca(k: int) -> Any:
    import bigpca as bp

    return bp.SupervisedPCA(k)


def whole_map(store: str, k: int, grid: str = "11", **_: str) -> dict:
    """Time a map of (r1, r2)."""
    import bigpca as bp

    X, reads = open_counted(store)
    y, model = labels_of(store), bp.RoweisDiscriminantAnalysis(k, normalize=True)
    return timed(lambda: bp.roweis_map(X, y, int(grid), model=model).models[0][0].eigenvalues_, reads)


def kernel_roweis(store: str, k: int, gamma: str = "1", landmarks: str = "1000", **_: str) -> dict:
    """Time kernel Roweis discriminant analysis by landmarks."""
    import bigpca as bp

    model = partial(
        bp.KernelRoweisDiscriminantAnalysis, r1=0.0, r2=0.999, gamma=float(gamma), n_landmarks=int(landmarks)
    )
    return fit_model(model, store, k)


CONTENDERS = {
    "bigpca-pca": partial(fit_model, pca),
    "bigpca-supervised-pca": partial(fit_model, supervised_pca),
    "bigpca-fisher": partial(fit_model, fisher),
    "bigpca-roweis": partial(fit_model, roweis),
    "bigpca-roweis-map": whole_map,
    "bigpca-kernel-roweis": kernel_roweis,
}
DEFAULT = ["bigpca-pca", "bigpca-supervised-pca", "bigpca-fisher", "bigpca-roweis"]


def class_rows(rows: int, columns: int, y: np.ndarray, step: int) -> Iterator[np.ndarray]:
    """Yield rows about the means of their classes; both fall like 1/i."""
    generator = np.random.default_rng(7)
    weights = (np.arange(1.0, columns + 1) ** -1).astype("f4")
    means = generator.standard_normal((int(y.max()) + 1, columns), dtype="f4") * weights
    for start in range(0, rows, step):
        own = y[start : start + step]
        yield means[own] + generator.standard_normal((len(own), columns), dtype="f4") * weights


def medians_of(rows: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Medians of every number of every contender, and seconds over the PCA's."""
    medians = {
        contender: {key: statistics.median(row[key] for row in done) for key in done[0] if key != "contender"}
        for contender, done in rows.items()
    }
    base = medians.get("bigpca-pca", {}).get("seconds")
    for row in medians.values():
        if base:
            row["over_pca"] = row["seconds"] / base
    return medians


def main() -> None:
    """Write, run, print; or run the one contender that the command line names, for ``run_apart``."""
    if len(sys.argv) > 2 and sys.argv[1] in CONTENDERS and Path(sys.argv[2]).exists():
        run_one(CONTENDERS, __doc__)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", help=f'as "NAME key=value ..."; of {", ".join(CONTENDERS)}')
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--shape", default="1000000x512")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-k", type=int, default=20)
    given = parser.parse_args()
    n, d = (int(size) for size in given.shape.split("x"))
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    path = Path(given.directory, f"classes-{n}x{d}-{given.classes}.zarr")
    y = np.random.default_rng(6).integers(given.classes, size=n)
    np.save(path.with_suffix(".labels.npy"), y)
    step = max(1, min(n, CHUNK_BYTES // (4 * d)))
    store = write_rows(path, n, d, step, "float32", partial(class_rows, n, d, y))
    rows: dict[str, list[dict]] = {}
    for _ in range(given.rounds):
        for contender in given.contenders or DEFAULT:
            row = run_apart(contender, store, given.k, script=__file__)
            print(json.dumps(row), flush=True)
            if "failed" not in row:
                rows.setdefault(contender, []).append(row)
    medians = medians_of(rows)
    print(f"{n:,} x {d:,} float32, {given.classes:,} classes, k = {given.k}")
    print(f"{'':28}" + "".join(f"{head:>15}" for head, _, _ in COLUMNS))
    for contender, row in medians.items():
        cells = (f"{row[key]:15{shown}}" if key in row else f"{'':15}" for _, key, shown in COLUMNS)
        print(f"{contender:28}" + "".join(cells))
    print(json.dumps({c: {key: float(f"{value:.4g}") for key, value in row.items()} for c, row in medians.items()}))


if __name__ == "__main__":
    main()
