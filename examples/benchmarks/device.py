"""Fits on a device, beside what a user would write by hand there: time, memory, errors, bounds, and equal bits.

usage: python examples/benchmarks/device.py [ARITHMETIC] [--only ROW ...] [--small] [--fits N] [--profile]

ARITHMETIC is a library and a device, such as torch:cuda (the default), cupy or jax:gpu. Each row ends with one JSON
line as soon as it is measured, with the seconds of the best of --fits fits (of the kernel matrix of a million rows: of
one), the peak of the device's memory in bytes where its library tells it, and whether all fits had equal bits. "by
hand" is in torch, 10 to 20 lines each: products in float32, sums in float64. Errors are beside float64 by NumPy, of
fewer rows where there are many. --profile runs one more fit of each row and prints the functions of the fitting thread
that took longest. --rows and --columns are those of --only covariance; --peak, the TFLOPS of the card in
float32, gives its share of them. --small is for a CPU. Fails if bits differ or errors are too large (TF32 on?).
"""

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np

import bigpca as bp
from bigpca.devices import Device
from bigpca.engine.events import DoneEvent
from bigpca.passes.reading import blocks

EXACT = 2e-6  # of a product of 8,192 float32 rows, relative to its diagonal; TF32 had 2.5e-5 on an H100
ACCURATE = 1e-5  # of eigenvalues, relative to the largest
GAMMA = 0.1


@dataclass
class Bench:
    """A device, and the sizes to measure there."""

    arithmetic: str
    small: bool
    fits: int
    options: argparse.Namespace

    @property
    def torch(self) -> Any:
        """The library, if it is that of the device."""
        if not self.arithmetic.startswith("torch"):
            return None
        import torch

        return torch

    @property
    def place(self) -> str:
        return self.arithmetic.partition(":")[2] or "cpu"

    def size(self, usual: int, small: int) -> int:
        return small if self.small else usual

    def rows(self, n: int, d: int, power: float = 0.5, mean: float = 0.0) -> Any:
        """Return float32 rows, as a tensor on the device if its library is torch."""
        if self.torch is None:
            values = np.random.default_rng(0).standard_normal((n, d), dtype="f4")
            return values * np.arange(1, d + 1, dtype="f4") ** np.float32(-power) + np.float32(mean)
        X = self.torch.empty((n, d), device=self.place)
        generator = self.torch.Generator(device=self.place).manual_seed(0)
        scale = self.torch.arange(1, d + 1, device=self.place) ** -power
        for i in range(0, n, 1 << 17):
            some = X[i : i + (1 << 17)]
            some[...] = self.torch.randn(some.shape, device=self.place, generator=generator) * scale + mean
        return X

    def here(self, X: Any) -> np.ndarray:
        """Return rows in the host's memory."""
        return X if isinstance(X, np.ndarray) else X.cpu().numpy()

    def batches(self, X: Any) -> Any:
        """Return rows that are on the device, which are read where they are."""
        return bp.from_batches([X])

    def timed(self, work: Callable[[], Any], times: int | None = None) -> tuple[dict[str, Any], list[Any]]:
        """Return the best of the seconds, with the peak of the device's memory beside what is held, and all results."""
        cuda = self.torch.cuda if self.torch is not None and self.place.startswith("cuda") else None
        seconds, peak, found = [], None, []
        for _ in range(times or self.fits):
            if cuda is not None:
                cuda.synchronize()
                cuda.empty_cache()
                cuda.reset_peak_memory_stats()
            before, start = 0 if cuda is None else cuda.memory_allocated(), time.perf_counter()
            found.append(work())
            if cuda is not None:
                cuda.synchronize()
                peak = max(peak or 0, cuda.max_memory_allocated() - before)
            seconds.append(time.perf_counter() - start)
        return {"seconds": min(seconds), "device_bytes": peak}, found

    def by_hand(self, work: Callable[[], Any]) -> dict[str, Any]:
        """Return the seconds and peak memory of what is written in torch; None without it."""
        if self.torch is None:
            return {"by_hand_seconds": None}
        return {f"by_hand_{name}": value for name, value in self.timed(work, max(2, self.fits))[0].items()}

    def fitted(self, model: Any, X: Callable[[], Any], times: int | None = None) -> tuple[dict[str, Any], Any]:
        """Return the figures of fits on the device, and the last model."""
        with bp.config(arithmetic=self.arithmetic, max_kernel_evaluations=1e14):
            figures, found = self.timed(lambda: self.fit(model, X()), times)
            if self.options.profile:
                profile = cProfile.Profile()
                profile.runcall(self.fit, model, X())
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        values = [one.eigenvalues_ if hasattr(one, "eigenvalues_") else one.explained_variance_ for one in found]
        equal = all(np.array_equal(values[0], one) for one in values[1:])
        figures["equal_bits"] = equal if len(found) > 1 else None
        figures["seconds_of_reads"] = self.reads
        return figures, found[-1]

    def fit(self, model: Any, X: Any) -> Any:
        """Return a fit, and keep the seconds of its reads."""
        self.reads: list[tuple[str, float]] = []

        def watch(event: object) -> None:
            if isinstance(event, DoneEvent):
                self.reads.append((event.name, round(event.seconds, 3)))
                print(*self.reads[-1], flush=True)

        return model.__class__(**model.get_params()).fit(X, progress=watch)


def covariance(bench: Bench) -> dict[str, Any]:
    """Host rows by the device and by NumPy; the transfers and products of all blocks alone."""
    n, d = bench.options.rows, bench.options.columns
    rng = np.random.default_rng(0)
    values = rng.standard_normal((n, d), dtype="float32") * np.linspace(3, 0.1, d, dtype="float32") + 10
    size = min(n, 8192)
    X = da.from_array(values, chunks=(size, d))
    seconds: dict[str, list[float]] = {"numpy": [], bench.arithmetic: []}
    reads: dict[str, list[float]] = {name: [] for name in seconds}
    found: dict[str, list[np.ndarray]] = {name: [] for name in seconds}
    for _ in range(bench.fits):
        for name in seconds:
            model, groups = bp.PCA(10, solver="covariance"), [0.0]  # when they were added up

            def watch(event: object, groups: list[float] = groups) -> None:
                if type(event).__name__ == "GroupEvent":
                    groups.append(time.perf_counter())

            start = time.perf_counter()
            with bp.config(arithmetic=name):
                model.fit(X, progress=watch)
            seconds[name].append(time.perf_counter() - start)
            reads[name].append(groups[-1] - start)
            found[name].append(model.explained_variance_)
    transfers, products = alone(bench.arithmetic, values[:size], -(-n // size))
    rate, peak = 2.0 * n * d * d / products / 1e12, bench.options.peak
    expected, ours = found["numpy"][0], found[bench.arithmetic]
    return {
        "seconds": {name: min(times) for name, times in seconds.items()},
        "read_seconds": {name: min(times) for name, times in reads.items()},
        "transfer_seconds": transfers,
        "product_seconds": products,
        "tflops": rate,
        "share_of_peak": None if peak is None else rate / peak,
        "difference": float(np.abs(ours[0] / expected - 1).max()),
        "equal_bits": all(np.array_equal(ours[0], one) for one in ours[1:]),
        "product_error": product_error(bench.arithmetic),
    }


def product_error(name: str, d: int = 256) -> float:
    """Return the largest error of one product on the device, relative to the largest entry."""
    device = Device.of(name)
    rows = np.random.default_rng(1).standard_normal((8192, d)).astype("float32")
    there = device.put(rows)
    found = device.fetch(device.product(there, there))
    exact = rows.T.astype("float64") @ rows.astype("float64")
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def alone(name: str, rows: np.ndarray, count: int) -> tuple[float, float]:
    """Return the seconds of ``count`` transfers of a block, and of as many products of a block that is there."""
    device, seconds = Device.of(name), []
    with device.precise():
        there = device.put(rows)
        gram = device.gram(rows.shape[1])
        total = gram.add(device.zeros((rows.shape[1],) * 2), there)  # libraries load and compile
        device.fetch(total[:1, :])
        start = time.perf_counter()
        for _ in range(count):
            moved = device.put(rows)
        device.fetch(moved[:1, :])  # waits
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(count):
            total = gram.add(total, there)
        device.fetch(total[:1, :])
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1]


def gram_by_hand(torch: Any, blocks_of_rows: Any, shift: Any, n: int) -> Any:
    """Return the ten largest eigenvalues of the covariance of blocks of rows that come to the device, by ``eigh``."""
    d = len(shift)
    G = torch.zeros(d, d, dtype=torch.float64, device=shift.device)
    s = torch.zeros(d, dtype=torch.float64, device=shift.device)
    for block in blocks_of_rows:
        c = block - shift
        G += (c.T @ c).double()
        s += c.sum(0, dtype=torch.float64)
    return (torch.linalg.eigh(G - torch.outer(s, s) / n)[0].flip(0)[:10] / (n - 1)).cpu().numpy()


def pinned(torch: Any, H: np.ndarray, place: str, size: int = 16384) -> Any:
    """Yield blocks of host rows on the device, through two pinned buffers."""
    buffers = [torch.empty((size, H.shape[1]), pin_memory=place != "cpu") for _ in range(2)]
    events = [torch.cuda.Event() for _ in range(2)] if place != "cpu" else []
    for j, i in enumerate(range(0, len(H), size)):
        block, buffer = torch.from_numpy(H[i : i + size]), buffers[j % 2]
        if events:
            events[j % 2].synchronize()
        buffer[: len(block)].copy_(block)
        copy = buffer[: len(block)].to(place, non_blocking=True, copy=True)
        if events:
            events[j % 2].record()
        yield copy


def host(bench: Bench) -> dict[str, Any]:
    """Covariance of 200,000 x 2,048 rows in the host's memory; by hand: two pinned buffers."""
    n, d = bench.size(200_000, 4000), bench.size(2048, 64)
    H = bench.here(bench.rows(n, d, 0.7, 1.0))
    shift = None if bench.torch is None else bench.torch.tensor(H[:4096].mean(0), device=bench.place)
    hand = bench.by_hand(lambda: gram_by_hand(bench.torch, pinned(bench.torch, H, bench.place), shift, n))
    figures, model = bench.fitted(bp.PCA(10, solver="covariance"), lambda: H)
    return hand | figures | {"rows": n, "error": eigenvalue_error(bench, model, H)}


def there(bench: Bench) -> dict[str, Any]:
    """Covariance of 1,000,000 x 2,048 rows that are on the device."""
    n, d = bench.size(1_000_000, 4000), bench.size(2048, 64)
    X = bench.rows(n, d, 0.7, 1.0)

    def by_hand() -> Any:
        return gram_by_hand(bench.torch, (X[i : i + 32768] for i in range(0, n, 32768)), X[:4096].mean(0), n)

    hand = bench.by_hand(by_hand)
    figures, _ = bench.fitted(bp.PCA(10, solver="covariance"), lambda: bench.batches(X))
    few = X[:200_000]
    model = bench.fitted(bp.PCA(10, solver="covariance"), lambda: bench.batches(few), 1)[1]
    return hand | figures | {"rows": n, "error": eigenvalue_error(bench, model, bench.here(few))}


def eigenvalue_error(bench: Bench, model: Any, X: np.ndarray) -> float:
    """Return the largest difference of an eigenvalue from one of products in float64, relative to the first one."""
    wide = bp.from_batches([X[i : i + 8192].astype("f8") for i in range(0, len(X), 8192)])
    with bp.config(arithmetic=bench.arithmetic):
        exact = bp.PCA(10, solver="covariance").fit(wide)
    return float(np.abs(model.explained_variance_ - exact.explained_variance_).max() / exact.explained_variance_[0])


def krylov(bench: Bench) -> dict[str, Any]:
    """The iteration over 1,000,000 x 2,048 rows that are on the device; by hand: four fused products, no bounds."""
    n, d = bench.size(1_000_000, 4000), bench.size(2048, 64)
    X = bench.rows(n, d, 0.7, 1.0)

    def products() -> Any:
        torch = bench.torch
        q, mu = torch.randn(d, 30, device=bench.place), X.mean(0)
        for _ in range(4):
            q, _ = torch.linalg.qr(q)
            s = torch.zeros(d, 30, device=bench.place)
            for i in range(0, n, 65536):
                c = X[i : i + 65536]
                y = c @ q - mu @ q
                s += c.T @ y - torch.outer(mu, y.sum(0))
            q = s
        return torch.linalg.svdvals(q)

    hand = bench.by_hand(products)
    figures, model = bench.fitted(bp.PCA(10, solver="krylov", random_state=0), lambda: bench.batches(X))
    exact = bench.fitted(bp.PCA(10, solver="covariance"), lambda: bench.batches(X), 1)[1].explained_variance_
    difference = float(np.abs(model.explained_variance_ - exact).max() / exact[0])
    run = {"rows": n, "reads": model.n_passes_, "converged": bool(model.converged_), "difference": difference}
    return hand | figures | run


def sweeps_by_hand(torch: Any, Y: Any, sweeps: int, columns: int = 30) -> Any:
    """Multiply an orthonormal block by the centred matrix of an RBF kernel, so many times."""
    n, squares = len(Y), (Y * Y).sum(1)
    q = torch.randn(n, columns, device=Y.device)
    for _ in range(sweeps):
        q, _ = torch.linalg.qr(q)
        q = q - q.mean(0)
        z = torch.empty_like(q)
        for i in range(0, n, 8192):
            distances = (squares[i : i + 8192, None] + squares - 2 * (Y[i : i + 8192] @ Y.T)).clamp_(min=0)
            z[i : i + 8192] = torch.exp(-GAMMA * distances) @ q
        q = z - z.mean(0)
    return torch.linalg.svdvals(q)[:10].cpu().numpy()


def exact_kernel_pca() -> bp.KernelPCA:
    return bp.KernelPCA(10, kernel="rbf", gamma=GAMMA, solver="krylov")


def kernel_figures(model: Any, n: int) -> dict[str, Any]:
    """Return how a fit of the kernel matrix went, and the widest bounds relative to their eigenvalues."""
    widths = np.diff(model.eigenvalue_bounds_, axis=1)[:, 0] / model.eigenvalues_
    return {
        "rows": n,
        "reads": model.n_passes_,
        "converged": bool(model.converged_),
        "evaluations": float(model.kernel_evaluations_),
        "planned_evaluations": float(model.plan_.evaluations),
        "width_of_bounds_1": float(widths[0]),
        "width_of_bounds_k": float(widths.max()),
        "notes": [note for note in model.plan_.notes if note.startswith("multiplied")],
    }


def kernel_error(bench: Bench) -> float:
    """Return the largest difference of an eigenvalue from a fit in float64 by NumPy, relative to the first one.

    Bounds must hold the eigenvalues of the whole matrix.
    """
    n = bench.size(4000, 600)
    X = bench.here(bench.rows(n, bench.size(256, 16)))
    model, exact = bench.fitted(exact_kernel_pca(), lambda: X, 1)[1], exact_kernel_pca().fit(X.astype("f8"))
    K = bp.kernels.RBF(GAMMA)(X.astype("f8"))
    K = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    expected = np.linalg.eigvalsh(K)[::-1][:10]
    low, high = model.eigenvalue_bounds_.T
    if not ((low <= expected) & (expected <= high)).all():
        raise SystemExit("bounds do not hold the eigenvalues.")
    return float(np.abs(model.eigenvalues_ - exact.eigenvalues_).max() / expected[0])


def kernel(bench: Bench) -> dict[str, Any]:
    """Exact kernel PCA of 50,000 x 256 by an RBF kernel; by hand: three sweeps, no bounds, no stopping rule."""
    n = bench.size(50_000, 3000)
    Y = bench.rows(n, bench.size(256, 16))
    hand, X = bench.by_hand(lambda: sweeps_by_hand(bench.torch, Y, 3)), bench.here(Y)
    figures, model = bench.fitted(exact_kernel_pca(), lambda: X)
    return hand | figures | kernel_figures(model, n) | {"error": kernel_error(bench)}


def million(bench: Bench) -> dict[str, Any]:
    """Exact kernel PCA of 1,000,000 x 256 rows in the host's memory, certified; one fit."""
    n = bench.size(1_000_000, 4000)
    X = bench.here(bench.rows(n, bench.size(256, 16)))
    figures, model = bench.fitted(exact_kernel_pca(), lambda: X, 1)
    return figures | kernel_figures(model, n)


def nystrom_by_hand(torch: Any, Y: Any, landmarks: Any) -> Any:
    squares = (landmarks * landmarks).sum(1)
    K = torch.exp(-GAMMA * (squares[:, None] + squares - 2 * landmarks @ landmarks.T)).double()
    w, U = torch.linalg.eigh(K)
    F, m = (U / w.clamp(min=1e-10).sqrt()).float(), len(landmarks)
    S = torch.zeros(m, m, dtype=torch.float64, device=Y.device)
    t = torch.zeros(m, dtype=torch.float64, device=Y.device)
    for i in range(0, len(Y), 32768):
        c = Y[i : i + 32768]
        f = torch.exp(-GAMMA * ((c * c).sum(1)[:, None] + squares - 2 * c @ landmarks.T)) @ F
        S += (f.T @ f).double()
        t += f.sum(0, dtype=torch.float64)
    return torch.linalg.eigvalsh(S - torch.outer(t, t) / len(Y))[-10:].cpu().numpy()


def nystrom(bench: Bench) -> dict[str, Any]:
    """Nystrom features of 1,000,000 x 256 rows that are on the device, with 2,000 given landmarks."""
    n, m = bench.size(1_000_000, 4000), bench.size(2000, 60)
    Y = bench.rows(n, bench.size(256, 16))
    L = bench.here(Y[:m]).copy()
    hand = bench.by_hand(lambda: nystrom_by_hand(bench.torch, Y, Y[:m]))
    model = bp.NystromKernelPCA(10, kernel="rbf", gamma=GAMMA, n_landmarks=m, sampling=L)
    figures, _ = bench.fitted(model, lambda: bench.batches(Y))
    few = bench.here(Y[: bench.size(20_000, 1000)])
    found, expected = bench.fitted(model, lambda: few, 1)[1], model.fit(few.astype("f8"))
    error = np.abs(found.eigenvalues_ - expected.eigenvalues_).max() / expected.eigenvalues_[0]
    return hand | figures | {"rows": n, "landmarks": m, "error": float(error)}


def scores(bench: Bench) -> dict[str, Any]:
    """Scores of 1,000,000 x 2,048 rows that are on the device, to 10 axes, in the host's memory."""
    n, d = bench.size(1_000_000, 4000), bench.size(2048, 64)
    X = bench.rows(n, d, 0.7, 1.0)
    model = bp.PCA(10).fit(bench.here(X[:4000]))

    def projected() -> Any:
        A = bench.torch.tensor(model.components_.T.copy(), device=bench.place, dtype=X.dtype)
        mu = bench.torch.tensor(model.mean_, device=bench.place, dtype=X.dtype)
        return bench.torch.cat([(X[i : i + 32768] - mu) @ A for i in range(0, n, 32768)]).cpu().numpy()

    hand = bench.by_hand(projected)
    with bp.config(arithmetic=bench.arithmetic):
        figures, found = bench.timed(lambda: model.transform(bench.batches(X)))
    few = bench.here(X[:4000]).astype("f8")
    expected = (few - model.mean_) @ model.components_.T
    figures["equal_bits"] = all(np.array_equal(found[0], one) for one in found[1:])
    error = np.abs(found[0][:4000] - expected).max() / np.abs(expected).max()
    return hand | figures | {"rows": n, "error": float(error)}


ROWS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "there": there,
    "krylov": krylov,
    "host": host,
    "covariance": covariance,
    "scores": scores,
    "nystrom": nystrom,
    "kernel": kernel,
    "million": million,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arithmetic", nargs="?", default="torch:cuda")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int)
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--peak", type=float, help="of the card in float32, in TFLOPS")
    options = parser.parse_args()
    bench = Bench(options.arithmetic, options.small, options.fits, options)
    options.rows = options.rows or bench.size(200_000, 900)
    options.columns = options.columns or bench.size(2048, 40)
    blocks.PRECISE_FLOPS = 0.0  # products in float32, whatever the size
    wrong = []
    for name in options.only:
        record = {"row": name, "arithmetic": options.arithmetic} | ROWS[name](bench)
        for key, value in record.items():
            print(f"{key:20} {value}")
        print(json.dumps(record), flush=True)
        exact = record.get("product_error", 0.0) <= EXACT and record.get("error", 0.0) <= ACCURATE
        if record.get("equal_bits") is False or not exact:
            wrong.append(name)
    if wrong:
        raise SystemExit(f"bits differ between fits, or products are not exact (TF32 on?): {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
