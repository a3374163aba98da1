"""Landmarks for 60,000 pictures
=============================

Kernel PCA of Fashion-MNIST compared with linear PCA: how often is the nearest picture, by a number of scores, of the
same class?

What to see: the choice of the kernel matters more than the solver. The Hellinger kernel, sum sqrt(x y), of pictures
scaled to equal length finds a neighbour of the same class more often than linear PCA. It needs no kernel values,
because its features, sqrt(x), are known, so KernelPCA is one read of them ("features"). Chi-square, by landmarks, is
in between. A Gaussian kernel of the usual width is no better than linear PCA here. Its exact fit, which never stores
the n x n matrix, and its fit by landmarks give nearly the same neighbours. Landmarks take a small share of the kernel
values, and their bounds contain the exact eigenvalues. The variance that 50 axes capture does not measure how useful
they are.
"""
# sphinx_gallery_thumbnail_path = 'pictures/04_kernel_fashion.webp'

import time
from pathlib import Path
from typing import Any

import numpy as np
from tutorial_data import FASHION_MISSING, options, output_folder, read_fashion, same_kind

import bigpca as bp
from bigpca.kernels import RBF, ChiSquare, Hellinger, normalized

KEPT = (5, 10, 20, 50)
GAMMA = 4 / 784  # of grey levels from 0 to 1
EXACT, LANDMARKS = "RBF, exact", "RBF, by landmarks"


def models(k: int, landmarks: int, gamma: float) -> dict[str, Any]:
    """The models to compare, by name."""
    rbf, by_landmarks = RBF(gamma), {"n_landmarks": landmarks}
    return {
        "linear": bp.PCA(k),
        "Hellinger, lengths 1": bp.KernelPCA(k, kernel=normalized(Hellinger())),
        "chi-square, lengths 1": bp.NystromKernelPCA(k, kernel=normalized(ChiSquare()), **by_landmarks),
        EXACT: bp.KernelPCA(k, kernel=rbf),
        LANDMARKS: bp.NystromKernelPCA(k, kernel=rbf, **by_landmarks),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="pictures to learn from, at most 60,000")
    parser.add_argument("--test-rows", type=int, default=2_000, help="pictures held out, at most 10,000")
    parser.add_argument("--landmarks", type=int, default=500)
    parser.add_argument("--gamma", type=float, default=GAMMA)
    given = parser.parse_args(arguments)
    train, test = read_fashion(given.fashion), read_fashion(given.fashion, "t10k")
    if train is None or test is None:
        print(f"skipped: {FASHION_MISSING}")
        return
    folder, kinds, new_kinds = output_folder(given.out), train[1][: given.rows], test[1][: given.test_rows]
    grey = (part[0][:most].astype("float32") / 255 for part, most in ((train, given.rows), (test, given.test_rows)))
    X, new = (bp.ingest(rows, folder / f"{name}.zarr", overwrite=True) for name, rows in zip("Xy", grey, strict=True))

    print(
        f"{len(X):,} pictures, {len(new):,} held out: share whose nearest picture is of the same kind, by scores kept\n"
    )
    print(f"{'':22}" + "".join(f"{k:>7}" for k in KEPT) + "   variance  seconds  kernel values / n^2  solver")
    fitted: dict[str, tuple[Any, np.ndarray]] = {}
    for name, model in models(max(KEPT), given.landmarks, given.gamma).items():
        start = time.perf_counter()
        known = np.asarray(model.fit(X).transform(X))
        seconds, held_out = time.perf_counter() - start, np.asarray(model.transform(new))
        shares = [same_kind(known[:, :k], kinds, held_out[:, :k], new_kinds) for k in KEPT]
        evaluations = getattr(model, "kernel_evaluations_", 0) / len(X) ** 2
        captured = model.explained_variance_ratio_.sum()
        line = f"{name:22}" + "".join(f"{share:7.1%}" for share in shares) + f"{captured:11.1%}{seconds:9.1f}"
        print(f"{line}{evaluations:21.2f}  {model.solver_}")
        fitted[name] = model, held_out
    print("\neigenvalues of the Gaussian kernel: exact, and the bounds by landmarks")
    for i in (0, max(KEPT) - 1):
        low, high = fitted[LANDMARKS][0].eigenvalue_bounds_[i]
        print(f"  number {i:2} {fitted[EXACT][0].eigenvalues_[i]:9.2f}   {low:9.2f} to {high:9.2f}")
    draw(folder, fitted, new_kinds)


def draw(folder: Path, fitted: dict[str, tuple[Any, np.ndarray]], new_kinds: np.ndarray) -> None:
    """Draw the spectra and the held-out scores of each model, if Matplotlib is installed."""
    try:
        from tutorial_pictures import Portrait, picture_of_portraits

        from bigpca.plots.style import save_picture

        drawn = [
            Portrait(name, model.explained_variance_, model.explained_variance_ratio_, scores, new_kinds)
            for name, (model, scores) in fitted.items()
        ]
        picture = save_picture(picture_of_portraits(drawn), folder / "kernel_fashion.png")
    except ImportError:
        return
    print(f"\nspectra and scores of the pictures held out: {picture}")


if __name__ == "__main__":
    main()
