"""What is the same where functions of POSIX are absent, as on Windows; the types are checked for those systems too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, sys
import distributed, numpy, psutil, scipy.linalg, sklearn.base, zarr

for name in "O_NONBLOCK O_NOFOLLOW O_TMPFILE pread pwrite uname register_at_fork pathconf sync".split():
    vars(os).pop(name, None)
sys.modules.update(fcntl=None, resource=None)
sys.platform = "win32"
import bigpca
from bigpca.storage.lock import RunLock

X = numpy.random.default_rng(0).normal(size=(60, 8))
bigpca.ingest(X, "rows.zarr")
model = bigpca.PCA(2).fit("rows.zarr", checkpoint="checkpoint")
model.save("model.zarr")
scores = bigpca.load("model.zarr").transform("rows.zarr", out="scores.zarr")
print(numpy.allclose(scores.compute(), model.transform(X)), sorted(os.listdir()))
with RunLock("run.lock", "it"):
    try:
        RunLock("run.lock", "it").acquire()
    except bigpca.errors.OutputLockedError as error:
        print(error)
print(os.path.exists("run.lock"))
"""


def test_fits_files_and_locks_do_without_what_only_posix_has(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    written, locked, left = done.stdout.splitlines() or [done.stderr] * 3
    assert written == "True ['checkpoint', 'model.zarr', 'rows.zarr', 'scores.zarr']"
    assert locked.startswith("it is held by run ")
    assert left == "False"
