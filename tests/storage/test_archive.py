"""What earlier versions left on a disk is read by this one; what they did not finish is not taken for a result."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import zarr

import bigpca as bp
from bigpca.errors import CheckpointError
from tests.storage.archive.make import KEYS, X

ARCHIVE = Path(__file__).with_name("archive")


@pytest.fixture(
    scope="module", params=sorted(ARCHIVE.glob("*.tar.xz")), ids=lambda path: path.name.removesuffix(".tar.xz")
)
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("left")
    with tarfile.open(request.param) as archive:
        archive.extractall(place, filter="data")
    return place


def test_rows_and_scores_are_read_with_keys_provenance_and_checksums_and_by_zarr_alone(left: Path) -> None:
    scores, stored = np.load(left / "scores.npy"), zarr.open_array(left / "scores.zarr", mode="r")
    np.testing.assert_array_equal(zarr.open_array(left / "rows.zarr", mode="r")[...], X)
    np.testing.assert_allclose(stored[...], scores, rtol=1e-5)
    np.testing.assert_allclose(
        np.asarray(bp.load(left / "model.zarr").transform(left / "rows.zarr")), scores, rtol=1e-5
    )
    for name in ("rows.zarr", "scores.zarr"):
        assert bp.data.verify(left / name).ok
        assert bp.data.stored_keys(left / name).tolist() == KEYS.tolist()
        assert bp.data.provenance_of(left / name).call


def test_a_checkpoint_that_lies_elsewhere_is_not_taken_for_that_of_this_fit(left: Path) -> None:
    with pytest.raises(CheckpointError, match=r"run\.ckpt belongs to another computation .* or delete the directory"):
        bp.PCA(2, solver="krylov").fit(left / "rows.zarr", checkpoint=left / "run.ckpt")


@pytest.mark.parametrize("name", ["stopped.zarr", "written.zarr"])
def test_an_output_that_was_not_finished_is_no_result_and_is_written_again(left: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        bp.open(left / name)
    found = bp.load(left / "model.zarr").transform(left / "rows.zarr", out=left / name)
    np.testing.assert_allclose(np.asarray(found), np.load(left / "scores.npy"), rtol=1e-5)
