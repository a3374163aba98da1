"""Fit one contender of kernel PCA, Gaussian kernel, to one Zarr store and print one JSON line, as contenders.py does.

usage: python examples/benchmarks/kernel_contenders.py NAME STORE K [--reference FILE.npy] [gamma=G]
[landmarks=M] [key=value ...]

The eigenvalues are those of the centred kernel matrix. Rooflines run the products alone, on as many threads as there
are cores, one BLAS thread each, and scale a sample of them up: of one sweep over half the pairs of rows, or of the
passes by landmarks. roofline-landmarks takes `sampling` (uniform or rpcholesky) as bigpca-landmarks does. It
counts what is done with every row: `X L'`, exp, `C T` and `B'B` for the features. It counts no reading, nothing done
once (the factors of K_mm, the choice among candidates), no sums over blocks, and no read of rpcholesky beyond the
first, which needs the diagonal alone.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import zarr
from contenders import MIB, main, timed
from dask.system import CPU_COUNT
from reading import Reads, open_counted, read_once, zarr_counted

from bigpca.blas import one_blas_thread

TILE = 1024  # rows of a kernel block; its 4 MiB stay in a cache


def sklearn_exact(solver: str, store: str, k: int, gamma: str = "1", **_: str) -> dict:
    """In memory, loading included; the whole n x n matrix."""
    from sklearn.decomposition import KernelPCA

    array, reads = zarr_counted(store)
    model = KernelPCA(k, kernel="rbf", gamma=float(gamma), eigen_solver=solver, random_state=0)
    row = timed(lambda: model.fit(array[:]).eigenvalues_, reads)
    return row | {"evaluations": 1.0}


def sklearn_nystroem(store: str, k: int, gamma: str = "1", landmarks: str = "1000", **_: str) -> dict:
    """Uniform landmarks and PCA of their features, in memory, loading included."""
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem

    array, reads = zarr_counted(store)
    m, n = int(landmarks), array.shape[0]

    def fit() -> np.ndarray:
        B = Nystroem(kernel="rbf", gamma=float(gamma), n_components=m, random_state=0).fit_transform(array[:])
        return PCA(k, svd_solver="covariance_eigh").fit(B).explained_variance_ * (n - 1)

    return timed(fit, reads) | {"evaluations": m / n}


def bigpca_krylov(
    store: str, k: int, gamma: str = "1", tol: str = "1e-3", max_passes: str = "10", memory_limit: str = "",
    solver: str = "krylov", **_: str,
) -> dict:  # fmt: skip
    import bigpca as bp

    X, reads = open_counted(store)
    model = bp.KernelPCA(
        k, kernel=bp.kernels.RBF(float(gamma)), solver=solver, tol=float(tol), max_passes=int(max_passes),
        memory_limit=memory_limit or None,
    )  # fmt: skip
    return planned(model, X, reads)


def bigpca_landmarks(
    store: str, k: int, gamma: str = "1", landmarks: str = "1000", sampling: str = "rpcholesky",
    memory_limit: str = "", **_: str,
) -> dict:  # fmt: skip
    import bigpca as bp

    X, reads = open_counted(store)
    model = bp.NystromKernelPCA(
        k, kernel=bp.kernels.RBF(float(gamma)), n_landmarks=int(landmarks), sampling=sampling,
        memory_limit=memory_limit or None,
    )  # fmt: skip
    return planned(model, X, reads)


def planned(model: Any, X: Any, reads: Reads) -> dict:
    """Time a fit of bigpca, and say what its plan promised and what its bounds are."""
    plan = model.plan(X)
    row = timed(lambda: model.fit(X).eigenvalues_, reads)
    bounds = getattr(model, "eigenvalue_bounds_", np.column_stack([model.eigenvalues_] * 2))
    width = ((bounds[:, 1] - bounds[:, 0]) / model.eigenvalues_).max()
    share = model.kernel_evaluations_ / len(X) ** 2
    return row | {
        "evaluations": float(f"{share:.4g}"), "bound_width": float(f"{width:.3g}"),
        "planned_evaluations": float(f"{plan.evaluations / len(X) ** 2:.4g}"),
        "planned_mib": round(plan.process_bytes / MIB),
    }  # fmt: skip


def scaled(rows: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose dot products are ``2 gamma x'y``, and their ``-gamma x'x``."""
    return rows * np.float32(np.sqrt(2 * gamma)), -gamma * np.einsum("ij,ij->i", rows, rows)


def gaussian(rows: np.ndarray, negative: np.ndarray, I: slice, J: slice) -> np.ndarray:
    """Block ``exp(-gamma |x_i - x_j|^2)`` of what :func:`scaled` returned."""
    K = rows[I] @ rows[J].T
    K += negative[I, None]
    K += negative[J]
    return np.exp(K, out=K)


def roofline_sweep(store: str, k: int, gamma: str = "1", **_: str) -> dict:
    """Products of tiles of half the pairs of rows, exp, and two products with l columns,
    as many as a Krylov block has.
    """
    array = zarr.open_array(store, mode="r")
    n, columns = array.shape[0], max(2 * k, k + 10)
    rows = array[: min(n, 8 * TILE)].astype("f4")
    W = np.random.default_rng(0).standard_normal((len(rows), columns), dtype="f4")
    rows, negative = scaled(rows, float(gamma))
    pairs = [(i, j) for i in range(0, len(rows), TILE) for j in range(i, len(rows), TILE)]

    def multiply(pair: tuple[int, int]) -> int:
        I, J = (slice(start, start + TILE) for start in pair)
        K = gaussian(rows, negative, I, J)
        if I == J:
            K @ W[J]
            return K.size // 2  # its other half is not needed
        K @ W[J], K.T @ W[I]
        return K.size

    seconds, done = in_threads(multiply, pairs)
    sweep = seconds * n * n / 2 / done
    return {"seconds": round(sweep, 3), "read_s": read_once(store), "sweep_s": sweep, "evaluations": 0.5}


def roofline_landmarks(
    store: str, k: int, gamma: str = "1", landmarks: str = "1000", sampling: str = "rpcholesky", **_: str
) -> dict:  # fmt: skip
    """The products of every row in the pass of the features.

    Raises
    ------
    SystemExit
        For samplings whose products are not counted here.
    """
    from scipy.linalg.blas import ssyrk

    if sampling not in ("uniform", "rpcholesky"):
        raise SystemExit(f"sampling={sampling} has no roofline: uniform or rpcholesky was expected. Leave it out.")
    array = zarr.open_array(store, mode="r")
    n, m = array.shape[0], min(int(landmarks), array.shape[0])
    rows = array[: min(n, 32 * TILE)].astype("f4")
    rows, negative = scaled(rows, float(gamma))
    T = np.eye(m, dtype="f4")

    def multiply(start: int) -> int:
        B = gaussian(rows, negative, slice(start, start + TILE), slice(m)) @ T
        ssyrk(1.0, B.T)
        return len(B)

    starts = range(0, len(rows), TILE)
    whole = in_threads(multiply, starts)[0] * n / len(rows)
    return {"seconds": round(whole, 3), "read_s": read_once(store), "landmarks_s": whole, "evaluations": m / n}


def in_threads(work: Callable[[Any], int], items: Any) -> tuple[float, int]:
    """Return the seconds of all work, after one warming call in each thread, and the sum of what it returns."""
    items = list(items)
    with one_blas_thread(), ThreadPoolExecutor(CPU_COUNT) as pool:
        list(pool.map(work, items[:CPU_COUNT]))
        began = time.perf_counter()
        done = sum(pool.map(work, items))
        return time.perf_counter() - began, done


CONTENDERS = {
    "roofline-sweep": roofline_sweep,
    "roofline-landmarks": roofline_landmarks,
    "sklearn-arpack": partial(sklearn_exact, "arpack"),
    "sklearn-randomized": partial(sklearn_exact, "randomized"),
    "sklearn-nystroem": sklearn_nystroem,
    "bigpca-krylov": bigpca_krylov,
    "bigpca-landmarks": bigpca_landmarks,
}


if __name__ == "__main__":
    main(CONTENDERS, __doc__)
