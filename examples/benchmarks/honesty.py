"""Whether converged answers are: random spectra, built to mislead an iteration, against the
singular values of the rows.

usage: python examples/benchmarks/honesty.py [--spectra 2000] [--seed 0] [--largest 500]

Every spectrum is given to the krylov solver itself: giants of 1e2 to 1e12, flat ones, plateaus, clusters, i^-0.1 to
i^-3, rare rows, rows sorted by class; rows in float32 and float64, multiplied in their own precision however few; in
rows (covariance operator) and in stores chunked in columns (dot operator); some k and tol. Prints, for each kind, how
many answers claim to have converged, how many of those are off by more than tol and 3 tol of an eigenvalue, each of the
latter with its parameters, how many bounds are broken by more than rounding; and, where lambda_2k <= 0.7 lambda_k, how
many answers are claimed no later than one read after they were good enough. Flat spectra are also solved with 60 reads
granted: "given up" counts those that are not claimed though reads were left. Ends with one JSON line.
"""

import argparse
import json
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import zarr

import bigpca as bp
from bigpca.engine.events import PassEvent
from bigpca.engine.run import Run
from bigpca.estimators.linear.krylov import KrylovDotFit, KrylovFit, size_iteration
from bigpca.estimators.linear.spectrum import Settings
from bigpca.passes.reading import blocks
from bigpca.passes.rows import Rows

KINDS = ("giants", "flat", "plateau", "clusters", "power law", "rare rows", "sorted by class", "flat, many reads")
EPS = float(np.finfo(np.float64).eps)
ROUNDING = {"f4": 1e-6, "f8": 1e-13}  # of the trace: what bounds may be broken by
READS, MANY_READS = 12, 60
SURE = 0.7  # lambda_2k / lambda_k up to which an answer must be claimed in time


@dataclass(frozen=True)
class Case:
    """One problem: all of it follows from its number and the seed."""

    kind: str
    n: int
    d: int
    k: int
    tol: float
    dtype: str
    by_columns: bool
    seed: int

    @property
    def granted(self):
        """Products that the solver may take."""
        return MANY_READS if "many" in self.kind else READS

    def rows(self):
        """Return X (n, d)."""
        rng = np.random.default_rng(self.seed)
        X = rng.standard_normal((self.n, self.d)) * np.sqrt(spectrum(self.kind, self.d, rng))
        if self.kind == "rare rows":
            few = rng.choice(self.n, rng.integers(1, 4), replace=False)
            X[few] += 10 ** rng.uniform(0, 4) * rng.standard_normal((len(few), self.d))
        if self.kind == "sorted by class":
            classes = np.sort(rng.integers(0, rng.integers(3, 40), self.n))
            X += 10 ** rng.uniform(-1, 1.5) * rng.standard_normal((classes.max() + 1, self.d))[classes]
        if rng.random() < 0.3:  # else features are axes, as unscaled columns are
            X = X @ np.linalg.qr(rng.standard_normal((self.d, self.d)))[0]
        return (X + rng.choice([0.0, 3.0])).astype(self.dtype)


def spectrum(kind, d, rng):
    """Draw d variances, in any order."""
    i = np.arange(1, d + 1.0)
    tail = i ** -rng.uniform(0.1, 3.0 if kind == "power law" else 1.5)
    if kind == "giants":
        tail[: rng.integers(1, 4)] *= 10 ** rng.uniform(2, 12)
    elif kind.startswith("flat"):
        tail = np.ones(d) if rng.random() < 0.5 else i ** -rng.uniform(0, 0.1)
    elif kind == "plateau":
        steps = np.sort(rng.uniform(0.02, 1.0, rng.integers(2, 6)))[::-1]
        tail = np.repeat(steps, -(-d // len(steps)))[:d] * np.linspace(1 + rng.choice([0.0, 1e-3, 0.1]), 1, d)
    elif kind == "clusters":
        tail = (10.0 ** -np.arange(6))[np.minimum(i // rng.integers(2, 60), 5).astype(int)] * rng.uniform(0.99, 1, d)
    return rng.permutation(tail)


def draw(number, seed, largest):
    """Return the case of this number."""
    rng = np.random.default_rng([seed, number])
    n, d = (int(rng.integers(150, largest)) for _ in range(2))
    k = int(rng.choice([1, 2, 3, 5, 10, 20]))
    tol = float(rng.choice([1e-2, 1e-3, 1e-3, 1e-4, 1e-6]))
    kind, dtype = KINDS[number % len(KINDS)], str(rng.choice(["f4", "f8"]))
    return Case(kind, n, d, k, tol, dtype, bool(rng.random() < 0.3), int(rng.integers(2**31)))


def solve(case, given, max_passes):
    """Run the solver on rows or a store; return its spectrum and the products that it took."""
    products = []

    def count(event):
        if isinstance(event, PassEvent) and event.name in ("product", "dot"):
            products.append(event)

    blocks.PRECISE_FLOPS = 0.0  # multiply float32 rows in float32, as large fits do
    rows = Rows.of(bp.open(given))
    settings = Settings(case.k, tol=case.tol, max_passes=case.granted, solve_threads=1)
    most = max_passes + int(case.by_columns)  # the dot operator's components take one
    sizes = replace(next(size_iteration(rows, settings)), max_passes=most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
        fit = (KrylovDotFit if case.by_columns else KrylovFit)(rows, settings, sizes)
        found = fit.run(Run(progress=count))
    return found, len(products)


def errors(values, true, tol):
    """Largest relative error; of eigenvalues that float64 cannot resolve to tol, relative to the least that it can."""
    return float(np.max(np.abs(values - true) / np.maximum(true, 10 * EPS * true[0] / tol)))


def judge(case, folder):
    """Solve one case and compare with the singular values of its rows."""
    X = case.rows()
    given = X
    if case.by_columns:
        given = Path(folder) / "columns.zarr"
        chunks = (case.n, -(-case.d // 5))
        zarr.create_array(given, shape=X.shape, dtype=X.dtype, chunks=chunks, overwrite=True)[:] = X
    centred = X.astype(np.float64)
    centred -= centred.mean(axis=0)
    everything = np.linalg.svd(centred, compute_uv=False) ** 2 / (case.n - 1)
    true, trace = everything[: case.k], everything.sum()
    found, reads = solve(case, given, case.granted)
    error, claimed = errors(found.explained_variance_, true, case.tol), found.certificate.converged
    slack = ROUNDING[case.dtype] * trace
    lower, upper = found.certificate.eigenvalue_bounds.T
    share = np.sum((centred @ found.components_.T) ** 2) / (case.n - 1) / trace
    least, most = found.certificate.captured_variance_bounds
    broken = max((lower - true).max(), (true - upper).max(), (least - share) * trace, (share - most) * trace) > slack
    falls = 2 * case.k <= len(everything) and everything[2 * case.k - 1] <= SURE * true[-1]
    falls = falls and true[-1] * case.tol > 10 * EPS * true[0]  # else no float64 product shows it
    late = falls and not claimed
    if falls and claimed and reads > 2:
        earlier = solve(case, given, reads - 2)[0]
        late = errors(earlier.explained_variance_, true, case.tol) <= case.tol
    gave_up = "many" in case.kind and not claimed and reads < case.granted and true[-1] * case.tol > 10 * EPS * true[0]
    return {
        "claimed": claimed, "error": error, "broken": broken, "falls": falls, "late": late, "reads": reads,
        "gave up": gave_up,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage=__doc__.split("usage: ")[1].splitlines()[0],
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--spectra", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=int, default=500, help="most rows and columns, over 150")
    arguments = parser.parse_args()
    counts = {kind: defaultdict(int) for kind in (*KINDS, "all")}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.spectra):
            case = draw(number, arguments.seed, arguments.largest)
            result = judge(case, folder)
            over = result["error"] / case.tol if result["claimed"] else 0.0
            for kind in (case.kind, "all"):
                count = counts[kind]
                count["spectra"] += 1
                count["claimed"] += result["claimed"]
                count["over tol"] += over > 1
                count["over 3 tol"] += over > 3
                count["broken"] += bool(result["broken"])
                count["falling"] += bool(result["falls"])
                count["late"] += bool(result["late"])
                count["reads"] += result["reads"]
                count["given up"] += bool(result["gave up"])
            if over > 1 or result["broken"] or result["gave up"]:
                print(f"{over:8.2f} tol, bounds {'broken' if result['broken'] else 'hold'}: {case}", flush=True)
    columns = ("spectra", "claimed", "over tol", "over 3 tol", "broken", "falling", "late", "reads", "given up")
    print(f"{'':16}" + "".join(f"{name:>12}" for name in columns))
    for kind, count in counts.items():
        print(f"{kind:16}" + "".join(f"{count[name]:12d}" for name in columns))
    whole = counts["all"]
    shares = {
        "over_tol": whole["over tol"] / max(1, whole["claimed"]),
        "over_3_tol": whole["over 3 tol"] / max(1, whole["claimed"]),
        "in_time": 1 - whole["late"] / max(1, whole["falling"]),
        "broken": whole["broken"],
        "given_up": whole["given up"],
    }
    print(json.dumps({"seed": arguments.seed, "spectra": whole["spectra"], "claimed": whole["claimed"], **shares}))


if __name__ == "__main__":
    main()
