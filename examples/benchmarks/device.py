"""PCA with blocks multiplied on a device, against NumPy: time, agreement, equal bits, and exact products.

usage: python examples/benchmarks/device.py [ARITHMETIC] [--rows N] [--columns D] [--fits N] [--peak TFLOPS]

ARITHMETIC is a library and a device, such as torch:cuda (the default), cupy or jax:gpu. Fits the covariance of float32
rows in memory by both in turn, three times. Prints the seconds of the best fit, and of its read up to the last group;
the seconds that the transfers of all blocks take alone, and the products of blocks that are there; the rate of these
products, and its share of the card's peak in float32 where --peak gives it; the largest difference of an eigenvalue
from NumPy's; whether all fits had equal bits; and the error of one product of float32 rows, which would be a hundred
times as large in TF32. Ends with one JSON line; fails if bits differ, or if products are not exact.
"""

import argparse
import json
import time

import dask.array as da
import numpy as np

import bigpca as bp
from bigpca.devices import Device
from bigpca.passes.reading import blocks

EXACT = 2e-6  # of a product of 8,192 float32 rows, relative to its diagonal; TF32 had 2.5e-5 on an H100


def product_error(name: str, d: int = 256) -> float:
    """Return the largest error of one product on the device, relative to the largest entry."""
    device = Device.of(name)
    rows = np.random.default_rng(1).standard_normal((8192, d)).astype("float32")
    found = device.fetch(device.add_gram(device.zeros((d, d)), rows)[0])
    exact = rows.T.astype("float64") @ rows.astype("float64")
    return float(np.abs(found - exact).max() / np.abs(exact).max())


def alone(name: str, rows: np.ndarray, count: int) -> tuple[float, float]:
    """Return the seconds of ``count`` transfers of a block, and of as many products of a block that is there."""
    device, seconds = Device.of(name), []
    with device.precise():
        there = device.put(rows)
        total = device.add_gram(device.zeros((rows.shape[1],) * 2), there)[0]  # libraries load and compile
        device.fetch(total[:1, :])
        start = time.perf_counter()
        for _ in range(count):
            moved = device.put(rows)
        device.fetch(moved[:1, :])  # waits
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(count):
            total = device.add_gram(total, there)[0]
        device.fetch(total[:1, :])
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arithmetic", nargs="?", default="torch:cuda")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--fits", type=int, default=3)
    parser.add_argument("--peak", type=float, help="of the card in float32, in TFLOPS")
    options = parser.parse_args()
    n, d = options.rows, options.columns
    rng = np.random.default_rng(0)
    values = rng.standard_normal((n, d), dtype="float32") * np.linspace(3, 0.1, d, dtype="float32") + 10
    size = min(n, 8192)
    X = da.from_array(values, chunks=(size, d))
    blocks.PRECISE_FLOPS = 0.0  # products in float32, whatever the size
    seconds: dict[str, list[float]] = {"numpy": [], options.arithmetic: []}
    reads: dict[str, list[float]] = {name: [] for name in seconds}
    found: dict[str, list[np.ndarray]] = {name: [] for name in seconds}
    for _ in range(options.fits):
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
    transfers, products = alone(options.arithmetic, values[:size], -(-n // size))
    rate = 2.0 * n * d * d / products / 1e12
    expected, ours = found["numpy"][0], found[options.arithmetic]
    record = {
        "arithmetic": options.arithmetic,
        "seconds": {name: min(times) for name, times in seconds.items()},
        "read_seconds": {name: min(times) for name, times in reads.items()},
        "transfer_seconds": transfers,
        "product_seconds": products,
        "tflops": rate,
        "share_of_peak": None if options.peak is None else rate / options.peak,
        "difference": float(np.abs(ours[0] / expected - 1).max()),
        "equal_bits": all(np.array_equal(ours[0], one) for one in ours[1:]),
        "product_error": product_error(options.arithmetic),
    }
    for name, value in record.items():
        print(f"{name:15} {value}")
    print(json.dumps(record))
    if not record["equal_bits"] or record["product_error"] > EXACT:
        raise SystemExit("bits differ between fits, or products are not exact (TF32 on?).")


if __name__ == "__main__":
    main()
