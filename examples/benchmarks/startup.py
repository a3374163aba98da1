"""What a process pays before its first result: CPU seconds of imports, of a first small fit and of the command line.

usage: python examples/benchmarks/startup.py [--rounds 9] [--programs NAME ...]

Every program runs in a process of its own, in turn with the others, after one round that fills the caches of bytecode
and files. Prints the median of each and its ratio to scikit-learn's import, and ends with one JSON line.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

SMALL = "import numpy; X = numpy.random.default_rng(0).normal(size=(100, 5))"
PROGRAMS = {
    "scikit-learn": ["-c", "from sklearn.decomposition import PCA"],
    "base classes and dask.array": ["-c", "import sklearn.base, dask.array"],
    "bigpca": ["-c", "import bigpca; bigpca.PCA"],
    "scikit-learn, first fit": ["-c", f"from sklearn.decomposition import PCA; {SMALL}; PCA(2).fit(X)"],
    "bigpca, first fit": ["-c", f"import bigpca; {SMALL}; bigpca.PCA(2).fit(X)"],
    "bigpca --help": ["-m", "bigpca", "--help"],
}
REFERENCE = "scikit-learn"


def cpu_seconds(arguments: list[str]) -> float:
    """Return user and system seconds of one Python process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run all programs in turn, and compare their medians."""
    parser = argparse.ArgumentParser(
        usage="python examples/benchmarks/startup.py [--rounds 9] [--programs NAME ...]",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    given = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in given.programs}
    for number in range(given.rounds + 1):
        for name in given.programs:
            seconds = cpu_seconds(PROGRAMS[name])
            if number:
                taken[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, median in medians.items():
        ratio = f", {median / medians[REFERENCE]:.2f} x {REFERENCE}" if REFERENCE in medians else ""
        print(f"{name:30} {median:.2f} s of CPU{ratio}")
    print(json.dumps({"cpu_seconds": medians}))


if __name__ == "__main__":
    main()
