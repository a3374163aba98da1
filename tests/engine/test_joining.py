"""Before the first read, a cluster is looked at: software, files, memory; real workers in other environments and
mounts.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import bigpca as bp
from bigpca.blas import blas_description
from bigpca.data.stores import ingest
from bigpca.engine.cluster.watch import PACKAGES, check_versions
from bigpca.engine.events import Event, GroupEvent
from bigpca.engine.run import Run
from bigpca.errors import MemoryBudgetError
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.rows import Rows
from tests.faults.kit import start, wait_until, when
from tests.passes.kit import bits, folded, logged, moments_of, normal, write_store

N, D = 2000, 16
PACKAGE, ROOT = Path(bp.__file__).parent, str(Path(__file__).parents[2])
pytestmark = pytest.mark.usefixtures("small_groups")


# The rules, on what processes report.

HERE: dict[str, str | None] = {
    "python": "3.11.7.final.0", "bigpca": "0.1.0", "dask": "2026.8.0", "distributed": "2026.8.0", "numpy": "2.4.6",
    "zarr": "3.1.6", "scipy": "1.17.1", "numcodecs": "0.16.6",
}  # fmt: skip


@pytest.mark.parametrize(
    ("package", "there", "outcome"),
    [
        ("python", "3.12.1.final.0", "error"),
        ("python", "3.11.9.final.0", "warning"),
        ("bigpca", "0.1.1", "error"),
        ("dask", "2026.7.1", "error"),
        ("dask", "2026.8.1", "warning"),
        ("distributed", "2025.8.0", "error"),
        ("distributed", "2026.8.1", "warning"),
        ("numpy", "1.26.4", "error"),
        ("numpy", "2.3.0", "warning"),
        ("zarr", "2.18.7", "error"),
        ("zarr", "3.2.0", "warning"),
        ("scipy", "0.19.0", "warning"),
        ("numcodecs", "0.17.0", "warning"),
        *((package, None, "missing") for package in PACKAGES if package != "python"),
        *((package, HERE[package], "nothing") for package in PACKAGES),
    ],
)
def test_versions_that_break_a_run_are_rejected_and_others_are_reported(
    package: str, there: str | None, outcome: str
) -> None:
    others = {
        "the scheduler": HERE,
        "worker tcp://a": HERE | {package: there},
        "worker tcp://b": HERE | {package: there},
    }
    told = f"{package} is {there} on worker tcp://a and 1 more and {HERE[package]} here"
    if outcome == "nothing":
        assert check_versions(HERE, others) is None
    elif outcome == "warning":
        warning = check_versions(HERE, others)
        assert warning is not None
        assert warning.startswith(told + ": the result is as accurate")
    else:
        with pytest.raises(ConnectionError) as caught:
            check_versions(HERE, others)
        assert str(caught.value).startswith(told.replace("None", "missing"))
        assert "It is best to run scheduler and workers in the same image" in str(caught.value)


# Real workers.


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joining") / "x.zarr"
    write_store(path, normal(N, D), (50, D))
    return path


@pytest.fixture(scope="module")
def empty() -> Iterator[Client]:
    """A scheduler without workers."""
    with (
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def addresses(client: Client) -> set[str]:
    """The workers that the scheduler has now; the client hears of them later."""
    return set(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.workers)))


@contextmanager
def worker(
    client: Client,
    python: Path | str = sys.executable,
    prefix: tuple[str, ...] = (),
    path: str = ROOT,
    memory: str = "2GiB",
    resources: str = "",
) -> Iterator[str]:
    """A worker process of another Python, or under another command; yields its address."""
    before = addresses(client)
    command = [*prefix, str(python), "-m", "distributed.cli.dask_worker", client.scheduler.address, "--no-nanny"]
    options = ["--nthreads", "1", "--memory-limit", memory, "--no-dashboard", "--host", "127.0.0.1"]
    options += ["--resources", resources] if resources else []
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ({"PYTHONPATH": path} if path else {})
    if (python, prefix, path, memory) == (sys.executable, (), ROOT, "2GiB"):  # a fork holds what it was forked from
        process = start([*command, *options])
    else:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([*command, *options], cwd="/", env=environment, stdout=quiet, stderr=quiet)
    try:
        client.wait_for_workers(len(before) + 1, timeout=600)
        (address,) = addresses(client) - before
        yield address
    finally:
        process.kill()
        process.wait(600)
        wait_until(lambda: set(client.scheduler_info()["workers"]) <= before)


def make_environment(place: Path, versions: dict[str, str]) -> Path:
    """A virtual environment with this one's packages but bigpca; some say that they have another version."""
    venv.create(place, symlinks=True)
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    folders = [Path(folder) for folder in sys.path if Path(folder).name == "site-packages"]
    for ours in chain.from_iterable(folder.iterdir() for folder in folders):
        name, _, rest = ours.name.partition("-")
        if "bigpca" in ours.name or ours.suffix == ".pth":  # which may lead to bigpca
            continue
        if rest.endswith(".dist-info") and name in versions:
            shutil.copytree(ours, theirs / ours.name)
            metadata = theirs / ours.name / "METADATA"
            metadata.write_text(
                re.sub(r"(?m)^Version: .*$", f"Version: {versions[name]}", metadata.read_text(), count=1)
            )
        elif not (theirs / ours.name).exists():
            (theirs / ours.name).symlink_to(ours)
    return place / "bin" / "python"


@pytest.mark.cluster
def test_tasks_run_where_annotations_allow_them_and_no_other_worker_is_judged(
    store: Path, empty: Client, tmp_path: Path
) -> None:
    model = bp.PCA(2, solver="krylov", tol=1e-9, max_passes=3, random_state=0)
    with dask.config.set(scheduler="sync"), warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
        expected = model.fit(bp.open(store)).components_.tobytes()
        with worker(empty, memory="300MiB") as small, worker(empty, resources="GPU=1") as able:
            dask.config.set(scheduler=None)
            with empty.as_current(), pytest.raises(MemoryBudgetError, match=f"the smallest worker, {small},"):
                model.fit(bp.open(store))
            for annotations in ({"resources": {"GPU": 1}}, {"workers": [able]}):
                with empty.as_current(), dask.annotate(**annotations):
                    found = model.fit(bp.open(store), checkpoint=tmp_path / str(len(annotations)))
                assert found.components_.tobytes() == expected
                assert found.plan_.resources.processes == 1
            assert empty.run(lambda dask_worker: dask_worker.state.executed_count)[small] == 0
            with (
                empty.as_current(),
                dask.annotate(resources={"TPU": 1}),
                pytest.raises(TimeoutError, match=r"no worker with the resources \{'TPU': 1\} on tcp.* for 1 s"),
            ):
                moments_of(bp.open(store), workers_timeout=1)


@pytest.mark.cluster
def test_a_worker_without_bigpca_or_with_a_broken_one_is_rejected_with_the_ways_to_install_it(
    store: Path, empty: Client, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "other", {})
    with worker(empty, python, path="") as address, empty.as_current(), pytest.raises(ConnectionError) as caught:
        moments_of(bp.open(store), checkpoint=tmp_path / "c")
    message = str(caught.value)
    assert message.startswith(f"bigpca is missing on worker {address} and {bp.__version__} here: ")
    assert 'client.register_plugin(distributed.PipInstall(["bigpca"]))' in message
    assert "UploadDirectory" in message
    assert message.endswith(f"Resume with checkpoint='{tmp_path}/c'.")
    (tmp_path / "broken" / "bigpca").mkdir(parents=True)
    (tmp_path / "broken" / "bigpca" / "__init__.py").write_text("raise ImportError('half a copy')")
    broken = (
        r"cannot be imported on worker tcp://.* \(ImportError: half a copy\), although .* imported here\. .*PipInstall"
    )
    with worker(empty, python, path=str(tmp_path / "broken")), empty.as_current():  # noqa: SIM117
        with pytest.raises(ConnectionError, match=broken):
            moments_of(bp.open(store))


@pytest.mark.cluster
def test_other_versions_on_a_worker_are_reported_once_and_bigpca_may_lie_on_its_path(
    store: Path, empty: Client, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "other", {"scipy": "1.99.0"})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "bigpca").symlink_to(PACKAGE)
    with dask.config.set(scheduler="sync"):
        expected = bits(moments_of(bp.open(store)))
    with worker(empty, python, path=str(tmp_path / "folder")) as address, empty.as_current():
        with pytest.warns(
            UserWarning, match=rf"^scipy is 1\.99\.0 on worker {address} and .* here: the result is as"
        ) as told:
            assert bits(moments_of(bp.open(store))) == expected
        assert len(told) == 1
        assert bits(moments_of(bp.open(store))) == expected  # warnings are errors: it is not told again


@pytest.mark.cluster
def test_workers_that_compute_other_last_bits_are_reported_once(store: Path, empty: Client) -> None:
    if "openblas" not in blas_description() or platform.machine() != "x86_64":
        pytest.skip("an OpenBLAS of many kernels is needed")
    with worker(empty), worker(empty, prefix=("env", "OPENBLAS_CORETYPE=Nehalem")) as older, empty.as_current():
        with pytest.warns(UserWarning, match=rf"different BLAS kernels .*Nehalem.* on worker {older}") as told:
            moments_of(bp.open(store))
        assert len(told) == 1
        moments_of(bp.open(store))  # warnings are errors: it is not told again


@pytest.fixture
def mounted(tmp_path: Path) -> tuple[str, ...]:
    """A command prefix in whose mounts ``tmp_path/own`` is empty and ``tmp_path/mixed`` is ``tmp_path/another``."""
    for name in ("own", "mixed", "another"):
        (tmp_path / name).mkdir()
    script = 'mount -t tmpfs tmpfs "$0/own" && mount --bind "$0/another" "$0/mixed" && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", script, str(tmp_path))
    if os.geteuid() != 0:
        pytest.skip("a worker with other mounts needs root")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("mounts cannot be made here")
    return prefix


@pytest.mark.cluster
def test_files_that_a_worker_cannot_see_are_found_before_the_first_read(
    store: Path, empty: Client, tmp_path: Path, mounted: tuple[str, ...]
) -> None:
    own, mixed, out = tmp_path / "own" / "a.zarr", tmp_path / "mixed" / "a.zarr", tmp_path / "own" / "scores.zarr"
    A = normal(N, D)
    for path, rows in ((own, A), (mixed, A), (tmp_path / "another" / "a.zarr", A[:100])):
        write_store(path, rows, (50, D))
    np.save(own.with_name("part_0.npy"), A)
    X, shards = bp.open(store), str(own.with_name("part_*.npy"))
    stacked = da.concatenate([X, bp.open(own)])
    model = bp.PCA(2, solver="covariance").fit(A)
    errors: list[tuple[Callable[[], Any], str]] = [
        (lambda: moments_of(bp.open(own)), f"cannot see {own}, which this run reads"),
        (lambda: moments_of(stacked), f"cannot see {own}, which this run reads"),
        (lambda: moments_of(bp.open(shards)), f"cannot see {shards}, which this run reads"),
        (lambda: Rows.of(stacked[stacked[:, 0] > 3]), f"cannot see {own}, which this run reads"),  # rows are counted
        (lambda: moments_of(stacked - stacked.mean(axis=0)), f"cannot see {own}, which this run reads"),  # means first
        (lambda: moments_of(bp.open(mixed)), f"finds something else at {mixed}, which this run reads"),
        (lambda: model.transform(X, out=out), f"cannot see {out}.partial, which this run writes"),
        (lambda: ingest(X, out), f"cannot see {out}.partial, which this run writes"),
        (lambda: model.transform(A, out=out), f"cannot see {out}.partial, which this run writes"),
        (lambda: ingest(bp.from_batches([A], shape=A.shape), out), f"cannot see {out}.partial, which this run writes"),
    ]
    with worker(empty, prefix=mounted) as address, empty.as_current():
        for run, message in errors:
            with pytest.raises(FileNotFoundError, match=re.escape(f"worker {address} {message}")):
                run()
        assert not out.exists()
        assert model.transform(X, out=tmp_path / "scores.zarr").shape == (N, 2)


def fold_planned(X: da.Array, peak: int, **options: Any) -> Any:
    """Fold X into its moments under a plan of ``peak`` bytes a thread."""
    run = Run(workers_timeout=600, peak_bytes=peak, **options)
    return folded(Rows.of(X), Moments(D), run, name="moments").state


@pytest.mark.cluster
def test_workers_that_join_are_asked_once_and_what_they_lack_is_rejected_before_a_run_and_reported_within_it(
    store: Path, empty: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    run = Client.run

    def count(self: Client, function: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(options["workers"])
        return run(self, function, *arguments, **options)

    monkeypatch.setattr(Client, "run", count)
    X = bp.open(store)
    with worker(empty) as first, ExitStack() as later:
        with empty.as_current():
            expected = bits(moments_of(X))
            assert bits(moments_of(X)) == expected
            assert asked == [[first]]

        def join(event: Event) -> None:
            if isinstance(event, GroupEvent) and len(empty.scheduler_info()["workers"]) == 1:
                later.enter_context(worker(empty, memory="400MiB"))

        with Client(empty.scheduler.address, set_as_default=False) as client, client.as_current():
            large = (
                rf"worker {first} has .* left of its memory limit of 2\.0 GiB .* plan for its 1 thread is 2\.0 GiB\. "
                r"Retire such workers .*, start"
            )
            with pytest.raises(MemoryBudgetError, match=large):
                fold_planned(X, 2 << 30)
        with Client(empty.scheduler.address, set_as_default=False) as client, client.as_current():
            gate = tmp_path / "gate"  # its last rows are read when the worker that joined has answered
            slow = logged(store, tmp_path / "log", gate=str(gate), gate_row=N - 500)
            small = r"left of its memory limit of 400\.0 MiB .*: it joined during the run and may be killed"
            with pytest.warns(UserWarning, match=small) as told, when(lambda: told, gate.touch):
                assert bits(fold_planned(slow, 200 << 20, progress=join)) == expected
            assert len(told) == 1
            where = bp.PCA(2, solver="covariance").plan(X).resources.where
            assert re.fullmatch(r"the memory limit of the smallest worker, tcp://127\.0\.0\.1:\d+,", where)
            assert first not in where
