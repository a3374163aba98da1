"""Two sets of features of the same rows: bigpca beside scikit-learn, xeofs and CKA averaged over minibatches.

usage: python examples/benchmarks/pairs.py [--rows 20000] [--columns 512] [--rounds 2] [-k 10] [--only NAME ...]

Both sides are Zarr stores in float32, in chunks of 1,000 rows. Every contender runs in its own process, in turn: CKA
(bigpca's of all rows; means of biased CKA over batches, in NumPy), maximum covariance analysis, CCA, and ridge
regression of 20 targets for five penalties and five folds. "pca" is one fit of the columns side by side, whose product
has the same operations as one read of pairs. "layers" is one pass over batches of twelve layers, of half to four times
the columns, and "layers_alone" twelve fits. The value is the first that was found: CKA, a squared covariance fraction,
a canonical correlation, or R^2, to compare contenders. Ends with one JSON line.
"""

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from contenders import run_apart, timed

import bigpca as bp

warnings.filterwarnings("ignore")
CHUNK, TARGETS, ALPHAS = 1000, 20, (0.1, 1.0, 10.0, 100.0, 1000.0)


def features(rows: int, columns: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of two networks for the same rows, which share some directions."""
    maps = np.random.default_rng(1)
    shared, own = columns // 8, maps.standard_normal((2, columns // 8, columns), dtype="f4")
    generator = np.random.default_rng([2, start])
    common = generator.standard_normal((rows, shared), dtype="f4") * np.float32(0.97) ** np.arange(shared, dtype="f4")
    noise = generator.standard_normal((2, rows, columns), dtype="f4")
    return common @ own[0] + noise[0], common @ own[1] + noise[1]


def store_features(folder: Path, rows: int, columns: int) -> Path:
    """Write both sides, and both side by side, chunk by chunk."""
    import zarr

    sizes = {"x.zarr": columns, "y.zarr": columns, "both.zarr": 2 * columns}
    stores = [
        zarr.create_array(folder / name, shape=(rows, width), chunks=(CHUNK, width), dtype="f4")
        for name, width in sizes.items()
    ]
    for start in range(0, rows, CHUNK):
        x, y = features(min(CHUNK, rows - start), columns, start)
        for store, values in zip(stores, (x, y, np.hstack([x, y])), strict=True):
            store[start : start + CHUNK] = values
    return folder


def in_memory(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return both sides in float64, as scikit-learn computes."""
    import zarr

    x, y = (zarr.open_array(folder / name)[:].astype("f8") for name in ("x.zarr", "y.zarr"))
    return x, y


def minibatches(folder: Path, batch: int) -> float:
    """Return the mean of biased CKA over batches of rows."""
    found = []
    X, Y = in_memory(folder)
    for i in range(0, len(X) - batch + 1, batch):
        K, L = (one @ one.T for one in (side[i : i + batch] - side[i : i + batch].mean(0) for side in (X, Y)))
        found.append((K * L).sum() / np.sqrt((K * K).sum() * (L * L).sum()))
    return float(np.mean(found))


def mca_of_xeofs(folder: Path, k: int) -> float:
    """Return the largest squared covariance fraction by xeofs, on Dask arrays."""
    import dask.array as da
    import xarray as xr
    from xeofs.cross import MCA

    arrays = {side: da.from_zarr(folder / f"{side}.zarr") for side in "xy"}
    x, y = (
        xr.DataArray(array, {"time": np.arange(array.shape[0]), side: np.arange(array.shape[1])}, ("time", side))
        for side, array in arrays.items()
    )
    found = MCA(k, standardize=False, use_pca=False).fit(x, y, dim="time")
    return float(found.squared_covariance_fraction().values[0])


def mca_of_sklearn(folder: Path, k: int) -> float:
    """Return the same by scikit-learn, which has no fractions: from its scores and the covariance."""
    from sklearn.cross_decomposition import PLSSVD

    X, Y = in_memory(folder)
    x, y = PLSSVD(k, scale=False).fit(X, Y).transform(X, Y)
    C = (X - X.mean(0)).T @ (Y - Y.mean(0))
    return float((x[:, 0] @ y[:, 0]) ** 2 / (C**2).sum())


def cca_of_sklearn(folder: Path, k: int) -> float:
    """Return the largest canonical correlation by scikit-learn."""
    from sklearn.cross_decomposition import CCA

    x, y = CCA(1, max_iter=500).fit(*in_memory(folder)).transform(*in_memory(folder))
    return float(np.corrcoef(x[:, 0], y[:, 0])[0, 1])


def ridge_of_sklearn(folder: Path, k: int) -> float:
    """Return the mean R^2 of the best penalty by scikit-learn."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, KFold

    X, Y = in_memory(folder)
    folds = KFold(5, shuffle=True, random_state=0)
    return float(GridSearchCV(Ridge(), {"alpha": ALPHAS}, cv=folds).fit(X, Y[:, :TARGETS]).best_score_)


def sides(folder: Path) -> tuple[str, str]:
    """Return the paths of both stores."""
    return str(folder / "x.zarr"), str(folder / "y.zarr")


def ridge(folder: Path, k: int) -> float:
    """Return the mean R^2 of the best penalty by bigpca."""
    x, y = sides(folder)
    return float(bp.Ridge(list(ALPHAS), cv=5).fit(x, bp.open(y)[:, :TARGETS]).cv_scores_.mean(axis=1).max())


def layers(folder: Path, *, together: bool) -> float:
    """Return the largest variance of the first of twelve layers, from one pass over all, or from twelve fits.

    Batches are eight arrays in turn: as those of a forward pass, they are not in the processor's cache.
    """
    import zarr

    rows, columns = zarr.open_array(folder / "x.zarr").shape
    widths, size = np.linspace(columns // 2, 4 * columns, 12).astype(int), min(512, rows)
    held = [
        {
            f"layer{i}": np.random.default_rng([j, i]).standard_normal((size, d), dtype="f4")
            for i, d in enumerate(widths)
        }
        for j in range(8)
    ]
    batches = [held[j % 8] for j in range(rows // size)]
    if together:
        models = bp.fit_layers(iter(batches), bp.PCA(2))
    else:
        with bp.config(solve_threads=1):
            models = {name: bp.PCA(2).fit(bp.from_batches(one[name] for one in batches)) for name in held[0]}
    return float(models["layer0"].explained_variance_[0])


CONTENDERS = {
    "pca": lambda at, k: float(bp.PCA(k).fit(str(at / "both.zarr")).explained_variance_[0]),
    "cka": lambda at, k: bp.quality.cka(*sides(at), n_folds=None).value,
    "biased": lambda at, k: bp.quality.cka(*sides(at), n_folds=None, debiased=False).value,
    "minibatch32": lambda at, k: minibatches(at, 32),
    "minibatch128": lambda at, k: minibatches(at, 128),
    "mca": lambda at, k: float(bp.PLSSVD(k, scale=False).fit(*sides(at)).squared_covariance_fraction_[0]),
    "mca_sklearn": mca_of_sklearn,
    "mca_xeofs": mca_of_xeofs,
    "cca": lambda at, k: float(bp.CCA(k).fit(*sides(at)).correlations_[0]),
    "cca_sklearn": cca_of_sklearn,
    "ridge": ridge,
    "ridge_sklearn": ridge_of_sklearn,
    "layers": lambda at, k: layers(at, together=True),
    "layers_alone": lambda at, k: layers(at, together=False),
}


def one() -> None:
    """Measure one contender after a tiny run of it, and print its row."""
    name, folder, k = sys.argv[1:]
    with tempfile.TemporaryDirectory() as small:
        CONTENDERS[name](store_features(Path(small), 300, 24), 2)  # imports, and what is compiled
    row = timed(lambda: np.array([CONTENDERS[name](Path(folder), int(k))]))
    print(json.dumps(row | {"value": float(row.pop("eigenvalues")[0])}))


def main() -> None:
    """Run all in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[*CONTENDERS], choices=CONTENDERS)
    given = parser.parse_args()
    result: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        store_features(Path(folder), given.rows, given.columns)
        runs: dict[str, list[dict]] = {name: [] for name in given.only}
        for _ in range(given.rounds):
            for name, rows in runs.items():
                rows.append(run_apart(name, Path(folder), given.k, script=__file__))
    print(f"{given.rows:,} x ({given.columns} + {given.columns}) float32; medians of {given.rounds} rounds")
    print(f"{'contender':14}{'seconds':>9}{'cpu s':>8}{'peak MiB':>10}{'value':>12}")
    for name, rows in runs.items():
        row = {key: statistics.median(row[key] for row in rows) for key in ("seconds", "cpu_s", "peak_mib", "value")}
        print(f"{name:14}{row['seconds']:9.2f}{row['cpu_s']:8.2f}{row['peak_mib']:10.0f}{row['value']:12.6f}")
        result[name] = row
    print(json.dumps(result))


if __name__ == "__main__":
    one() if sys.argv[1:2] and sys.argv[1] in CONTENDERS else main()
