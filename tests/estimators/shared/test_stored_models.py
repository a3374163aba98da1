"""A stored model of each class loads, and returns what it returned when it was saved: the format does not drift."""

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import bigpca as bp
from bigpca.blas import numerical_environment
from bigpca.storage import read_group
from tests.estimators.stored_models.make import LABELS, MODELS, main, results

FOLDER = Path(__file__).parents[1] / "stored_models"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    with tarfile.open(FOLDER / "models.tar.xz") as archive:
        archive.extractall(place, filter="data")
    return place


def test_a_model_is_added_to_those_that_are_stored_and_none_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[str, bytes | None]:
        with tarfile.open(tmp_path / "models.tar.xz") as archive:
            return {one.name: part.read() if (part := archive.extractfile(one)) else None for one in archive}

    for name in ("models.tar.xz", "expected.npz"):
        shutil.copy(FOLDER / name, tmp_path)
    before = contents()
    monkeypatch.setitem(MODELS, "More", MODELS["PCA"])
    main(tmp_path, "More")
    after = contents()
    assert before.items() <= after.items()
    assert {name.partition("/")[0] for name in after.keys() - before.keys()} == {"More"}
    with np.load(FOLDER / "expected.npz") as old, np.load(tmp_path / "expected.npz") as new:
        assert all(new[key].tobytes() == old[key].tobytes() for key in old)
        assert {key.partition("/")[0] for key in set(new) - set(old)} == {"More"}
    with pytest.raises(FileExistsError):
        main(tmp_path, "More")


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_model_returns_what_it_returned_then(name: str, models: Path) -> None:
    expected = {
        key.removeprefix(f"{name}/"): values
        for key, values in np.load(FOLDER / "expected.npz").items()
        if key.startswith(f"{name}/")
    }
    found = results(bp.load(models / name), LABELS.get(name))
    assert set(found) == set(expected)
    written_here = (
        read_group(models / name, kind=None, newest=(1, 0)).attributes["environment"] == numerical_environment()
    )
    for method, values in expected.items():
        if written_here and method != "after more rows":  # where a solver runs again
            assert found[method].tobytes() == values.tobytes(), method
        assert found[method].dtype == values.dtype
        tolerance = 1e-5 if values.dtype == np.float32 else 1e-12 if method != "after more rows" else 1e-8
        np.testing.assert_allclose(found[method], values, rtol=0, atol=tolerance * np.abs(values).max())
