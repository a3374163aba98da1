"""An output that is what is read for it, whatever it is called, is rejected, and nothing of it is deleted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from obstore.store import MemoryStore, S3Store

import bigpca as bp
from bigpca.errors import OutputExistsError
from bigpca.storage.places import ObjectStore
from tests.conftest import local_or_memory
from tests.storage.writing import stored

pytestmark = pytest.mark.usefixtures("one_thread")

X = np.random.default_rng(0).standard_normal((24, 4))
MODEL = bp.PCA(2, random_state=0).fit(X)


def s3(place: ObjectStore) -> S3Store:
    return S3Store("rows", client_options={"allow_http": True}, endpoint=os.environ["AWS_ENDPOINT_URL"])


def key(place: ObjectStore) -> str:
    return place.url.removeprefix("s3://rows/")


def in_store(place: ObjectStore) -> Any:
    return zarr.open_array(zarr.storage.ObjectStore(s3(place), read_only=True), path=key(place), mode="r")


def xarray(url: str) -> Any:
    return pytest.importorskip("xarray").DataArray(da.from_zarr(url), dims=("rows", "columns"))


# By name, what leads to the place of an output: as it is given, and as rows that are read there.
OUTPUTS: dict[str, Callable[[ObjectStore], Any]] = {
    "URL": lambda p: p.url,
    "slash": lambda p: f"{p.url}/",
    "ObjectStore": lambda p: p,
    "endpoint": lambda p: ObjectStore(p.url, endpoint=os.environ["AWS_ENDPOINT_URL"]),
    "store": lambda p: ObjectStore(s3(p)).at(key(p)),
    "prefix": lambda p: ObjectStore(
        S3Store("rows", prefix=key(p).rpartition("/")[0], endpoint=os.environ["AWS_ENDPOINT_URL"],
                client_options={"allow_http": True})
    ).at(key(p).rpartition("/")[2]),
}  # fmt: skip
INPUTS: dict[str, Callable[[ObjectStore], Any]] = OUTPUTS | {
    "opened": lambda p: bp.open(p.url),
    "computed": lambda p: bp.open(p.url) * 2 + 1,
    "cut": lambda p: bp.open(p.url)[3:, ::2],
    "joined": lambda p: da.concatenate([bp.open(p.url), da.from_array(X)]),
    "Zarr array": in_store,
    "Zarr wrapper": lambda p: zarr.open_array(
        zarr.storage.LoggingStore(zarr.storage.ObjectStore(s3(p), read_only=True)), path=key(p), mode="r"
    ),
    "s3fs": lambda p: zarr.open_array(p.url, mode="r"),
    "from_zarr": lambda p: da.from_zarr(p.url),
    "from_zarr of a store": lambda p: da.from_zarr(in_store(p)),
    "chain": lambda p: f"simplecache::{p.url}",
    "DataArray": lambda p: xarray(p.url),
    "view": lambda p: bp.open(p.url, columns=[0, 1, 2]),
}


def linked(path: Path) -> Path:
    link = path.with_name("link.zarr")
    if not link.exists():
        link.symlink_to(path)
    return link


LOCAL: dict[str, Callable[[Path], Any]] = {
    "path": str,
    "slash": lambda p: f"{p}/",
    "link": linked,
    "dots": lambda p: f"{p.parent}/../{p.parent.name}/{p.name}",
    "opened": bp.open,
    "computed": lambda p: bp.open(p) * 2,
    "Zarr array": lambda p: zarr.open_array(p, mode="r"),
    "from_zarr": lambda p: da.from_zarr(str(p)),
    "file URL": lambda p: f"file://{p}",
}


# By name, what reads rows for an output.
VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "ingest": lambda read, out: bp.ingest(read, out, overwrite=True),
    "transform": lambda read, out: MODEL.transform(read, out=out, overwrite=True),
    "inverse_transform": lambda read, out: bp.PCA(4).fit(X).inverse_transform(read, out=out, overwrite=True),
    "Nystroem": lambda read, out: bp.NystromKernelPCA(2).fit(X).transform(read, out=out, overwrite=True),
    "training rows": lambda read, out: bp.KernelPCA(2, kernel="rbf").fit(read).transform(X, out=out, overwrite=True),
}


def rejected(verb: Callable[[Any, Any], Any], read: Any, out: Any, place: Any) -> None:
    before = stored(place)
    with pytest.raises(OutputExistsError, match="is, or contains, the input that is read"):
        verb(read, out)
    assert stored(place) == before


CASES = [("ingest", read, "URL") for read in INPUTS] + [("ingest", "URL", out) for out in OUTPUTS if out != "URL"]
CASES += [(verb, "opened", "ObjectStore") for verb in VERBS]


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")  # of a chain that is not asynchronous
@pytest.mark.parametrize(("verb", "read", "out"), CASES)
def test_an_input_in_a_bucket_is_not_replaced_under_any_name(
    verb: str, read: str, out: str, place: ObjectStore
) -> None:
    bp.ingest(X, place, chunk_rows=8)
    rejected(VERBS[verb], INPUTS[read](place), OUTPUTS[out](place), place)


@pytest.mark.parametrize(("verb", "read"), [("ingest", read) for read in LOCAL] + [(verb, "path") for verb in VERBS])
def test_an_input_on_a_disk_is_not_replaced_under_any_name(verb: str, read: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    bp.ingest(X, path, chunk_rows=8)
    for out in (path, linked(path), f"{path}/"):
        rejected(VERBS[verb], LOCAL[read](path), out, path)


@pytest.mark.parametrize("verb", VERBS)
def test_an_input_in_memory_is_not_replaced(verb: str) -> None:
    place = ObjectStore(MemoryStore()).at("x.zarr")
    bp.ingest(X, place, chunk_rows=8)
    for read in (place, bp.open(place), bp.open(place) + 1)[: 2 if verb == "training rows" else 3]:
        rejected(VERBS[verb], read, place, place)


@local_or_memory
def test_what_only_has_a_similar_name_is_replaced(place: Any) -> None:
    """Another store, a longer name, a folder beside; an input that was read before, and is not read again."""
    other = tmp_other(place)
    bp.ingest(X, other)
    bp.ingest(X[:9], place)
    held = bp.open(place)
    bp.ingest(other, place, overwrite=True)
    assert held.shape != bp.open(place).shape == (24, 4)
    bp.PCA(2).fit(place).transform(other, out=place, overwrite=True)
    assert bp.open(place).shape == (24, 2)


def tmp_other(place: Any) -> Any:
    return place.with_name("out.zarr2") if isinstance(place, Path) else ObjectStore(place.store).at("out.zarr2")


@pytest.mark.parametrize("disk", [True, False])
def test_a_table_does_not_replace_a_file_of_the_folder_that_is_read(
    disk: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    home: Any = tmp_path / "rows" if disk else request.getfixturevalue("place")
    shards = [str(home / f"{i}.npy") if disk else f"{home.url}/{i}.npy" for i in range(2)]
    for shard in shards:
        MODEL.transform(X, out=shard)
    for read in (str(home) if disk else home.url, str(home / "*.npy") if disk else f"{home.url}/*.npy", shards):
        rejected(table, read, shards[1], home)


def table(read: Any, out: Any) -> None:
    bp.PCA(1).fit(X[:, :2]).transform(read, out=out, overwrite=True)
