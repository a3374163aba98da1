"""SIGKILL at every step of every write: the old content or the new one, and the next run goes on."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from bigpca.storage import create_output, read_group, write_group
from bigpca.storage.forms import form_of

CASES = ("model new", "model replace", "output new", "output replace", "table replace")
NAMES = {"model": "x.zarr", "output": "x.zarr", "table": "x.npy"}

# Forks one child per step; child i dies by SIGKILL at its i-th call of a function that changes the disk.
KILLER = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
import zarr.storage, zarr.codecs  # once, not in every child; no thread has started
import bigpca.storage as storage
from bigpca.storage.forms import form_of

def model(path, value, **options):
    storage.write_group(path, {"axes": np.eye(4) * value}, {"value": value}, kind="PCA",
                        format_version=(1, 0), **options)

def output(path, value, **options):
    with storage.create_output(path, shape=(8, 2), dtype="f4", chunk_rows=2, identity=str(value), **options) as o:
        for index in o.pending():
            o.writer.write(index, np.full((2, 2), value, "f4"))
        arm()
        o.finish()

def arm():
    global armed
    armed = True

def table(path, value, **options):
    output(path, value, form=form_of(path, ("a", "b")), **options)

folder = Path(sys.argv[1])
for case in sys.argv[2:]:
    what, how = case.split()
    act = {"model": model, "output": output, "table": table}[what]
    target, replace, step = "x.npy" if what == "table" else "x.zarr", how == "replace", 0
    while True:
        place = folder / case / f"step-{step:03d}"
        place.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            if replace:
                act(place / target, 1.0)
            count, armed = 0, what != "table"  # whose chunks are those of an output
            def killing(function):
                def call(*args, **kwargs):
                    global count
                    if armed and count == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += armed
                    return function(*args, **kwargs)
                return call
            for module, name in [(os, "rename"), (os, "replace"), (os, "unlink"), (os, "write"),
                                 (os, "mkdir"), (os, "rmdir"), (shutil, "rmtree")]:
                setattr(module, name, killing(getattr(module, name)))
            act(place / target, 2.0, **({"overwrite": True} if replace else {}))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
        step += 1
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", KILLER, str(folder), *CASES], check=True, timeout=600)
    return folder


@pytest.fixture(params=CASES)
def killed(request, steps):
    places = sorted((steps / request.param).iterdir())
    assert len(places) >= 5
    return *request.param.split(), places


def content(what: str, path: Path) -> float | None:
    """The value everywhere in what is at ``path``; None when nothing is visible."""
    if what == "model":
        try:
            group = read_group(path, kind="PCA", newest=(1, 0))
        except FileNotFoundError:
            with pytest.raises(FileNotFoundError, match=r"does not exist\. Check the path"):
                read_group(path, kind="PCA", newest=(1, 0))
            return None
        assert np.array_equal(group.arrays["axes"], np.eye(4) * group.attributes["value"])
        return float(group.attributes["value"])
    if not path.exists():
        return None
    if what == "table":
        values = np.unique(np.load(path))
    else:
        stored = zarr.open_array(path, mode="r")
        assert len(stored.attrs["bigpca_manifest"]["chunks"]) == 4
        values = np.unique(stored[...])
    assert len(values) == 1
    return float(values[0])


def again(what: str, path: Path) -> None:
    if what == "model":
        write_group(path, {"axes": np.eye(4) * 2}, {"value": 2.0}, kind="PCA", format_version=(1, 0), overwrite=True)
        return
    with create_output(path, shape=(8, 2), dtype="f4", chunk_rows=2, identity="2.0", form=form_of(path, ("a", "b")),
                       overwrite=True) as output:  # fmt: skip
        for index in output.pending():
            output.writer.write(index, np.full((2, 2), 2.0, "f4"))
        output.finish()


def test_a_kill_at_any_step_leaves_old_or_new_and_the_rerun_leaves_no_litter(killed):
    what, how, places = killed
    seen = []
    for place in places:
        path = place / NAMES[what]
        if what != "model" and how == "replace" and not path.exists():
            # Between the two renames: the next start repairs it.
            with pytest.raises(FileExistsError):
                create_output(
                    path, shape=(8, 2), dtype="f4", chunk_rows=2, identity="2.0", form=form_of(path, ("a", "b"))
                )
        seen.append(content(what, path))
        assert not list(path.rglob("*.tmp")), "what is published has no metadata of a killed run"
        again(what, path)
        assert content(what, path) == 2.0
        assert not list(path.rglob("*.tmp"))
        assert os.listdir(place) == [NAMES[what]]
    assert set(seen) == {1.0 if how == "replace" else None, 2.0}
    assert seen == sorted(seen, key=lambda value: value or 0), "the new content appears once and stays"


def test_chunks_finished_before_a_kill_are_kept(tmp_path):
    child = """
import os, signal, sys
import numpy as np
from bigpca.storage import create_output
output = create_output(sys.argv[1], shape=(10, 2), dtype="f4", chunk_rows=2, identity="a")
for index in (4, 0, 2):
    output.writer.write(index, np.full((2, 2), index, "f4"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "x.zarr"
    assert subprocess.run([sys.executable, "-c", child, str(path)], check=False).returncode == -9
    assert not path.exists()
    with create_output(path, shape=(10, 2), dtype="f4", chunk_rows=2, identity="a") as output:
        assert output.pending() == [1, 3]
        for index in output.pending():
            output.writer.write(index, np.full((2, 2), index, "f4"))
        output.finish()
    assert zarr.open_array(path, mode="r")[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert os.listdir(tmp_path) == ["x.zarr"]
