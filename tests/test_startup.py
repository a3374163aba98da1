"""What a process pays before its first fit: modules that nobody has asked for are not imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import bigpca as bp

# scikit-learn's base classes are what no estimator can do without, and dask.array no fit; they import what else is
# installed.
UNUSED = ["bigpca.data.files", "bigpca.data.hdf5", "bigpca.kernels", "bigpca.engine.cluster.run"]
PROGRAM = """
import json, sys
import dask.base, dask.highlevelgraph, dask.threaded, numpy, sklearn.base

def libraries():
    return {name.partition(".")[0] for name in sys.modules}

before, found = libraries(), {}
import bigpca
X = numpy.random.default_rng(0).normal(size=(60, 8))
PCA = bigpca.PCA
found["import"] = libraries() - before
found["unused"] = {name for name in ["dask.array", *UNUSED] if name in sys.modules}
import dask.array
before |= libraries() - found["import"]
model = PCA(2).fit(X)
found["fit"] = libraries() - before
model.transform(X)
found["transform"] = libraries() - before
with dask.config.set(scheduler="threads"):
    PCA(2).fit(dask.array.from_array(X, chunks=(20, 8)))
found["threads"] = libraries() - before
found["unused"] |= {name for name in UNUSED if name in sys.modules}
print(json.dumps({step: sorted(names) for step, names in found.items()}))
"""


def test_an_estimator_and_its_fit_of_an_array_import_nothing_beside_scikit_learn_and_dask_array() -> None:
    done = subprocess.run([sys.executable, "-c", f"{UNUSED = }\n{PROGRAM}"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found.pop("unused") == []
    assert found == {step: ["bigpca"] for step in ("import", "fit", "transform", "threads")}


HIDDEN = """
import importlib.abc, sys
HEAVY = {"numba", "pandas", "pyarrow", "xarray", "dask_ml", "sparse", "dask.array"}

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if {name, name.partition(".")[0]} & HEAVY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import bigpca, numpy
X = numpy.random.default_rng(0).normal(size=(60, 8))
model = bigpca.PCA(2).fit(X, sample_weight=numpy.ones(60))
print(model.transform(X).shape, model.partial_fit(X).inverse_transform(model.transform(X)).shape)
model = bigpca.FisherDiscriminantAnalysis(1).fit(X, X[:, 0] > 0)
print(model.score(X, X[:, 0] > 0) > 0.5, bigpca.KernelPCA(2, kernel="rbf").fit(X).transform(X).shape)
"""


def test_arrays_are_fitted_and_mapped_without_dask_arrays_libraries_of_tables_or_compiled_loops() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True)
    assert done.stdout == "(60, 2) (60, 8)\nTrue (60, 2)\n", done.stderr


def test_info_imports_no_dask_array_and_for_rows_no_linear_algebra(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 8))
    bp.PCA(2).fit(X).save(tmp_path / "model.zarr")
    bp.ingest(X, tmp_path / "rows.zarr", keys=[str(i) for i in range(60)])
    program = """
import sys
from bigpca.cli import main
heavy = ("dask.array", "distributed", "scipy.linalg", "sklearn")
for made in ("rows.zarr", "model.zarr"):
    sys.argv[1:] = ["info", made]
    try:
        main()
    except SystemExit as end:
        print(end.code, [name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.endswith("]")]
    assert found == ["0 []", "0 ['scipy.linalg', 'sklearn']"], done.stderr
