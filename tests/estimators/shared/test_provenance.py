"""How a model or its scores were made is recorded beside the numbers, and changes none of them."""

import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca.data import provenance
from bigpca.data.provenance import MAX_TEXT, Provenance, provenance_of, recording
from bigpca.errors import format_bytes
from tests.builders import data_with_spectrum, power_law

X = data_with_spectrum(60, power_law(6), mean=2.0)[0]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    bp.ingest(X, tmp_path / "rows.zarr", chunk_rows=20)
    return tmp_path / "rows.zarr"


def files(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_a_package_that_is_not_installed_has_the_version_that_it_states(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(provenance, "version", absent)
    provenance.version_of.cache_clear()
    assert provenance.versions(["bigpca", "numpy", "no_such_package"]) == {
        "python": platform.python_version(), "bigpca": bp.__version__, "numpy": np.__version__,
        "no_such_package": "not installed",
    }  # fmt: skip
    provenance.version_of.cache_clear()


def test_a_fit_records_what_it_read_and_how(rows: Path, tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    model = bp.PCA(2, solver="krylov", tol=1e-9).fit(rows)
    made = model.provenance_
    assert (made.source, made.member, made.rows) == (str(rows), None, 60)
    assert made.call == "PCA(n_components=2, solver='krylov', tol=1e-09).fit(X)"
    assert made.reads == model.n_passes_ > 1
    assert 0 < made.seconds < 60
    assert before <= datetime.fromisoformat(made.date) <= datetime.now(UTC)
    assert made.versions["numpy"] == np.__version__
    assert (made.peak_bytes, made.model) == (None, None), "not measured; not saved"
    model.save(tmp_path / "model.zarr")
    assert replace(bp.load(tmp_path / "model.zarr").provenance_, model=None) == made


def test_scores_record_the_model_that_made_them(rows: Path, tmp_path: Path) -> None:
    models = [bp.PCA(k).fit(X) for k in (1, 2)]
    for i, model in enumerate(models):
        model.save(tmp_path / f"{i}.zarr")
        bp.load(tmp_path / f"{i}.zarr").transform(rows, out=tmp_path / f"scores_{i}.zarr")
    of_models = [provenance_of(tmp_path / f"{i}.zarr") for i in (0, 1)]
    of_scores = [provenance_of(tmp_path / f"scores_{i}.zarr") for i in (0, 1)]
    assert [made.model for made in of_models] == [made.model for made in of_scores]  # type: ignore[union-attr]
    assert len({made.model for made in of_scores}) == 2  # type: ignore[union-attr]
    assert [made.source for made in of_scores] == [str(rows)] * 2  # type: ignore[union-attr]
    assert [made.source for made in of_models] == [None] * 2, "rows in memory"  # type: ignore[union-attr]


def test_equal_fits_give_equal_files_and_parameters_but_for_the_provenance(rows: Path, tmp_path: Path) -> None:
    found = []
    for name, command in (("a", ""), ("b", "bigpca fit rows.zarr")):
        with recording(command=command):
            model = bp.PCA(2).fit(rows, checkpoint=tmp_path / "checkpoint")
        model.save(tmp_path / name)
        found.append(files(tmp_path / name))
        assert clone(model).provenance_ is None
        assert not [key for key in model.get_params() if "provenance" in key]
    assert {name for name in found[0] if found[0][name] != found[1][name]} == {"provenance/zarr.json"}
    assert bp.load(tmp_path / "b").provenance_.call == "bigpca fit rows.zarr"


def test_a_model_without_the_record_loads(tmp_path: Path) -> None:
    model = bp.PCA(2).fit(X)
    model.save(tmp_path / "model.zarr")
    (tmp_path / "model.zarr" / "provenance" / "zarr.json").unlink()
    loaded = bp.load(tmp_path / "model.zarr")
    assert loaded.provenance_ is None
    loaded.save(tmp_path / "again.zarr")
    assert not (tmp_path / "again.zarr" / "provenance").exists()


def of_rows(rows: int, reads: float = 1.0, added: int | None = None, merged: int | None = None) -> dict[str, Any]:
    return {"rows": rows, "reads": reads, "added_rows": added, "merged_models": merged}


KINDS = np.arange(60) % 3
NYSTROM = bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=10, sampling="uniform")
SCORED = bp.ScoredPCA(1, n_features_to_select=3)
GROWN: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "partial_fit of a new model": (lambda: bp.PCA(2).partial_fit(X), "PCA(n_components=2).partial_fit(X)", of_rows(60)),
    "partial_fit beside covariates": (
        lambda: bp.PCA(2).partial_fit(X, covariates=X[:, :1]), "PCA(n_components=2).partial_fit(X, covariates=Z)",
        of_rows(60),
    ),
    "partial_fit": (
        lambda: bp.PCA(2).fit(X[:40]).partial_fit(X[40:50]).partial_fit(X[50:]),
        "PCA(n_components=2).fit(X)", of_rows(60, added=20),
    ),
    "partial_fit with a read": (
        lambda: clone(NYSTROM).fit(X[:40]).partial_fit(X[40:]), f"{NYSTROM!r}.fit(X)", of_rows(60, 7 / 3, added=20)
    ),
    "labels": (
        lambda: bp.FisherDiscriminantAnalysis(1).fit(X[:30], KINDS[:30]).partial_fit(X[30:], KINDS[30:]),
        "FisherDiscriminantAnalysis(n_components=1).fit(X, y)", of_rows(60, added=30),
    ),
    "scored": (lambda: clone(SCORED).fit(X, KINDS), f"{SCORED!r}.fit(X, y)", of_rows(60, 2.0)),
    "merge": (
        lambda: bp.merge(bp.merge(bp.PCA(2).fit(X), bp.PCA(2).fit(X[:30])), bp.PCA(2).fit(X[:10])),
        "bigpca.merge(a, b)", of_rows(100, merged=3),
    ),
    "map": (
        lambda: bp.roweis_map(X, KINDS, 2).models[1][0],
        "bigpca.roweis_map(X, y, model=RoweisDiscriminantAnalysis(n_components=2))", of_rows(60),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "call", "expected"), GROWN.values(), ids=GROWN)
def test_every_way_to_a_model_is_recorded(
    make: Callable[[], Any], call: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    made = make().provenance_
    assert made.call == " ".join(call.split())
    assert {name: getattr(made, name) for name in expected} == pytest.approx(expected)
    assert (made.planned_reads is None) == (made.added_rows is not None or made.merged_models is not None)


@pytest.mark.parametrize("more", [lambda old: old.partial_fit(X), lambda old: bp.merge(old, bp.PCA(2).fit(X))])
def test_a_model_made_of_one_without_a_record_has_none(more: Callable[[Any], Any]) -> None:
    old = bp.PCA(2).fit(X)
    old._provenance = None
    assert more(old).provenance_ is None


def test_a_saved_model_compares_its_plan_with_what_was_measured(rows: Path, tmp_path: Path) -> None:
    model = bp.PCA(2, solver="krylov")
    plan = model.plan(rows)
    model.fit(rows).save(tmp_path / "model.zarr")
    made = bp.load(tmp_path / "model.zarr").provenance_
    assert (made.planned_reads, made.planned_max_reads) == (plan.passes, plan.most_passes)
    assert (made.planned_seconds, made.planned_bytes) == (plan.seconds, plan.process_bytes)
    assert f"(planned: {plan.passes:.3g}, at most {plan.most_passes:.3g})" in made.lines()["rows read"]
    assert made.lines()["peak memory"] == f"not measured (planned: {format_bytes(plan.process_bytes)})"


def test_credentials_are_never_recorded_and_long_texts_are_cut() -> None:
    command = "bigpca fit 's3://key:secret@bucket/x.zarr?sig=4be9a0c1' --model m.zarr"
    with recording(command=command), recording(peak=lambda: 7):
        made = Provenance.now(["https://me:pass@host/x?token=12345678"], "m" * 9999, 1, "", seconds=1.0, reads=1.0)
    assert made.call == "bigpca fit 's3://bucket/x.zarr' --model m.zarr"
    assert (made.source, made.peak_bytes) == ("https://host/x", 7)
    assert Provenance.from_json(made.to_json()) == made


FORGED: dict[str, Any] = {
    "rows": [-1, 1.5, "1", None, True, 2**63], "seconds": ["1", -1.0, float("nan"), float("inf"), []],
    "reads": [{}, True], "peak_bytes": [1.5, -1], "source": [1, "x" * (MAX_TEXT + 1), ["x"]], "date": [None, 5],
    "versions": [None, [], {"a": 1}, {str(i): "1" for i in range(65)}], "model": [b"".hex, 3.0], "call": [["x"]],
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_record_is_rejected(name: str) -> None:
    whole = Provenance.now([], "", 1, "", seconds=1.0, reads=1.0).to_json()
    assert Provenance.from_json(whole | {"of a newer version": [1]}).rows == 1
    for value in FORGED[name]:
        with pytest.raises(ValueError, match=f"(has|lacks) {name}"):
            Provenance.from_json(whole | {name: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"attributes": {"rows": "many"}}', "was altered .*has rows = 'many'"),
        ('{"attributes": 3}', "was altered"),
        ("[1]", "was altered .*a JSON object was expected"),
        ("{", "was altered .*not valid JSON"),
        (" " * (2**20 + 1), "was altered .*at most 1,048,576 were expected"),
        (None, "was altered .*is a named pipe"),
    ],
)
def test_a_damaged_record_is_rejected_with_the_model(content: str | None, message: str, tmp_path: Path) -> None:
    bp.PCA(1).fit(X).save(tmp_path / "model.zarr")
    document = tmp_path / "model.zarr" / "provenance" / "zarr.json"
    assert json.loads(document.read_text())["node_type"] == "group"
    document.unlink()
    if content is None:
        os.mkfifo(document)
    else:
        document.write_text(content)
    with pytest.raises(bp.errors.ModelFormatError, match=message):
        bp.load(tmp_path / "model.zarr")
