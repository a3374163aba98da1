"""Kernel PCA with a Gaussian kernel, exact and by landmarks, against scikit-learn and against the products alone.

usage: python examples/benchmarks/kernel.py [--rows 20000 | --shape 113270x50] [--landmarks 1000] [CONTENDER ...]

Rows are pictures of Fashion-MNIST, grey levels from 0 to 1 (gamma 4/784), or, with --shape, points of clusters in a
spectrum that decays (gamma 1): 80000x50 and 113270x50 are sizes at which users ran out of memory, 1000000x100 is for
landmarks. Writes the store unless it is there, and reference eigenvalues beside it: arpack's up to 20,000 rows,
KernelPCA(tol=1e-6)'s up to 200,000, none beyond. Runs the contenders in turn, each in a process of its own; prints
every run, then medians. "values / n^2" are kernel evaluations; "x bound" is seconds over those of the products alone:
of as many sweeps as these are (roofline-sweep), or of all passes by landmarks (roofline-landmarks of the same settings:
give `"roofline-landmarks sampling=uniform"` beside `"bigpca-landmarks sampling=uniform"`). "bounds" is the widest
interval of an eigenvalue, relative to it. Peak memory is of all processes of a contender: over what they hold when the
fit begins, and in all. Ends with one JSON line.
"""

import argparse
import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import zarr
from contenders import run_apart
from dump import write_rows

import bigpca as bp

SCRIPT = str(Path(__file__).with_name("kernel_contenders.py"))
CHUNK = 2_500  # rows
CLUSTERS, POWER = 20, 1.0  # POWER: of the standard deviations
ARPACK_ROWS = 20_000  # up to which arpack's eigenvalues are the reference
SLOW_ROWS = 30_000  # up to which those that hold the n x n matrix run by default
SWEPT_ROWS = 200_000  # up to which bigpca sweeps over all pairs by default, and for a reference
MATRICES = {"sklearn-arpack": 1.5, "sklearn-randomized": 1.5}  # n x n float32 numbers that they hold
PEERS = ["sklearn-arpack", "sklearn-randomized", "sklearn-nystroem"]
SWEEPS, BY_LANDMARKS = ["roofline-sweep", "bigpca-krylov"], ["roofline-landmarks", "bigpca-landmarks"]
COLUMNS = (  # head, number, format
    ("seconds", "seconds", ".2f"), ("cpu", "cpu_s", ".2f"), ("x bound", "over_bound", ".2f"),
    ("MiB over idle", "peak_mib", ".0f"), ("MiB in all", "whole_mib", ".0f"), ("values / n^2", "evaluations", ".3g"),
    ("reads of X", "reads", ".2f"), ("largest error", "max_error", ".2g"), ("bounds", "bound_width", ".2g"),
)  # fmt: skip


def fashion_rows(folder: Path, rows: int, step: int) -> Iterator[np.ndarray]:
    """Yield pictures with grey levels from 0 to 1."""
    file = folder / "train-images-idx3-ubyte.gz"
    if not file.is_file():
        raise SystemExit(f"{file} is not there: apt-get install dataset-fashion-mnist, or give --fashion or --shape.")
    images = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 784)
    if rows > len(images):
        raise SystemExit(
            f"Fashion-MNIST has {len(images):,} pictures, {rows:,} were asked for: give fewer, or --shape."
        )
    for start in range(0, rows, step):
        yield images[start : min(start + step, rows)].astype("f4") / 255


def clustered_rows(rows: int, columns: int, step: int) -> Iterator[np.ndarray]:
    """Yield points of 20 clusters: centres and points about them weigh half the variance each,
    which is 1 and falls like i^-2.
    """
    generator = np.random.default_rng(5)
    weights = np.arange(1.0, columns + 1) ** -POWER
    weights = (weights / np.linalg.norm(weights)).astype("f4") * np.float32(np.sqrt(0.5))
    centres = generator.standard_normal((CLUSTERS, columns), dtype="f4") * weights
    for start in range(0, rows, step):
        count = min(step, rows - start)
        points = generator.standard_normal((count, columns), dtype="f4") * weights
        yield points + centres[generator.integers(CLUSTERS, size=count)]


def find_reference(store: Path, k: int, gamma: float) -> Path | None:
    """Path of the eigenvalues beside the store, computed where there are none; None for too many rows."""
    path, n = store.with_name(f"{store.name}.gamma-{gamma:.6g}.npy"), zarr.open_array(store, mode="r").shape[0]
    if path.exists():
        if (held := len(np.load(path))) < k:
            raise SystemExit(f"{path} holds {held} eigenvalues, {k} are needed: remove it, or ask for a smaller -k.")
        print(f"reference: {path.name}, which was there")
        return path
    if n > SWEPT_ROWS:
        print(f"reference: none, as a sweep over {n:,} rows takes too long; bounds by landmarks are certain")
        return None
    if n <= ARPACK_ROWS:
        from sklearn.decomposition import KernelPCA

        model = KernelPCA(k, kernel="rbf", gamma=gamma, eigen_solver="arpack", random_state=0)
        values = model.fit(zarr.open_array(store, mode="r")[:].astype("f8")).eigenvalues_
    else:
        exact = bp.KernelPCA(k, kernel=bp.kernels.RBF(gamma), solver="krylov", tol=1e-6, max_passes=30)
        values = exact.fit(bp.open(store)).eigenvalues_
    np.save(path, values)
    print(
        f"reference: {path.name}, by {'arpack in float64' if n <= ARPACK_ROWS else 'KernelPCA(tol=1e-6)'}", flush=True
    )
    return path


def run_all(contenders: list[str], store: Path, k: int, rounds: int, options: list[str]) -> dict[str, list[dict]]:
    """Run the contenders in turn, as often as asked; those that need more memory than there is are left out."""
    matrix, rows = 4 * zarr.open_array(store, mode="r").shape[0] ** 2, {}
    for _ in range(rounds):
        for contender in contenders:
            needed = MATRICES.get(contender.split()[0], 0) * matrix
            if needed > psutil.virtual_memory().available:
                print(f"{contender} is left out: it holds about {needed / 2**30:.0f} GiB", flush=True)
                continue
            own = {setting.split("=")[0] for setting in contender.split()[1:]}
            row = run_apart(contender, store, k, *(o for o in options if o.split("=")[0] not in own), script=SCRIPT)
            print(json.dumps(row), flush=True)
            if "failed" not in row:
                rows.setdefault(contender, []).append(row)
    return rows


def settings_of(contender: str) -> frozenset[str]:
    """The settings that change which products are made."""
    return frozenset(setting for setting in contender.split()[1:] if not setting.startswith("memory_limit="))


def medians_of(rows: dict[str, list[dict]]) -> dict[str, dict[str, float]]:
    """Medians of every number of every contender, and seconds over the roofline's of the same work."""
    medians = {
        contender: {key: statistics.median(row[key] for row in done) for key in done[0] if key != "contender"}
        for contender, done in rows.items()
    }
    sweep = medians.get("roofline-sweep", {}).get("seconds")
    landmarks = {settings_of(c): row["seconds"] for c, row in medians.items() if c.startswith("roofline-landmarks")}
    for contender, row in medians.items():
        if contender.startswith("bigpca-krylov") and sweep:
            row["over_bound"] = row["seconds"] / (sweep * row["evaluations"] / 0.5)
        if contender.startswith("bigpca-landmarks") and settings_of(contender) in landmarks:
            row["over_bound"] = row["seconds"] / landmarks[settings_of(contender)]
    return medians


def print_table(medians: dict[str, dict[str, float]]) -> None:
    """One line for each contender."""
    width = max(map(len, medians), default=0)
    print(" " * width + "".join(f"{head:>15}" for head, _, _ in COLUMNS))
    for contender, row in medians.items():
        cells = (f"{row[key]:15{shown}}" if key in row else f"{'':15}" for _, key, shown in COLUMNS)
        print(f"{contender:{width}}" + "".join(cells))


def main() -> None:
    """Write, refer, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", help='as "NAME key=value ..." of kernel_contenders.py')
    parser.add_argument("--directory", default=str(Path(tempfile.gettempdir()) / "bigpca-benchmarks"))
    parser.add_argument("--rows", type=int, default=20_000, help="of Fashion-MNIST, at most 60,000")
    fashion = Path("/usr/share/datasets/fashion-mnist")
    parser.add_argument("--fashion", type=Path, default=fashion, help="folder of its idx files")
    parser.add_argument("--shape", help="ROWSxCOLUMNS of synthetic rows instead")
    parser.add_argument("--gamma", type=float)
    parser.add_argument("--landmarks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-k", type=int, default=20)
    given = parser.parse_args()
    n, d = (int(size) for size in given.shape.split("x")) if given.shape else (given.rows, 784)
    blocks = partial(clustered_rows, n, d) if given.shape else partial(fashion_rows, given.fashion, n)
    gamma = given.gamma or (1.0 if given.shape else 4 / 784)
    Path(given.directory).mkdir(parents=True, exist_ok=True)
    path = Path(given.directory, f"{'clusters' if given.shape else 'fashion'}-{n}x{d}.zarr")
    store = write_rows(path, n, d, min(n, CHUNK), "float32", blocks)
    reference = find_reference(store, given.k, gamma)
    options = [f"gamma={gamma!r}", f"landmarks={given.landmarks}"]
    options += [] if reference is None else ["--reference", str(reference)]
    peers = PEERS if n <= SLOW_ROWS else PEERS[-1:]
    default = [*peers, *(SWEEPS if n <= SWEPT_ROWS else []), *BY_LANDMARKS]
    medians = medians_of(run_all(given.contenders or default, store, given.k, given.rounds, options))
    print(f"{n:,} x {d:,} float32, k = {given.k}, gamma = {gamma:.3g}, {given.landmarks:,} landmarks")
    print_table(medians)
    rounded = {c: {key: float(f"{value:.4g}") for key, value in row.items()} for c, row in medians.items()}
    print(json.dumps(rounded))


if __name__ == "__main__":
    main()
