"""What each command does, says and writes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
import zarr

import bigpca as bp
from bigpca.cli.output import MEANINGS
from bigpca.solvers.components import by_name
from tests.cli.running import COLUMNS, ROWS, line_of, run, run_json, words
from tests.data.sparse_savers import counts, write_parts


def test_fit_saves_what_the_library_computes_and_prints_plan_and_summary(store: Path) -> None:
    result = run("fit", "rows.zarr", "-k", 4, "--model", "m.zarr", "--scores", "s.zarr", "--checkpoint", "c")
    assert result.exit_code == 0, result.output
    X = bp.open(store)
    expected = bp.PCA(n_components=4).fit(X)
    np.testing.assert_array_equal(bp.load("m.zarr").components_, expected.components_)
    np.testing.assert_allclose(bp.open("s.zarr").compute(), expected.transform(X).compute(), rtol=1e-5, atol=1e-5)
    for text in (
        "solver",
        "planned: ",
        "of the variance",
        "all rows once",
        "m.zarr",
        "s.zarr",
        "rm -r c",
        "Next: bigpca report",
    ):
        assert text in result.stdout


def test_reads_of_row_panels_are_counted_as_in_the_plan_and_in_the_model(store: Path) -> None:
    np.save("wide.npy", np.random.default_rng(0).standard_normal((600, 4000), dtype="f4"))
    line = ("fit", "wide.npy", "-k", 2, "--solver", "dot", "--model", "dot.zarr")
    record = run_json(*line)
    assert record["passes"] == bp.load("dot.zarr").provenance_.reads
    assert record["passes"] % 1 != 0
    np.testing.assert_allclose(record["passes"], record["plan"]["passes"], atol=0.01)
    assert run_json(*line)["passes"] == 0


def test_fit_as_json_is_one_object_with_the_plan_and_the_cost(store: Path) -> None:
    record = run_json("fit", store, "-k", "0.9", "--scale", "--model", "m.zarr")
    assert record["exit_code"] == 0
    assert record["plan"]["passes"] == record["passes"] == 1
    assert record["captured"] > 0.9
    assert record["peak_bytes"] >= 0
    assert record["seconds"]["total"] >= record["seconds"]["fit"] > 0
    assert (record["model"], record["scores"], record["checkpoint"]) == ("m.zarr", None, None)
    assert record["seconds"]["scores"] is None
    assert bp.load("m.zarr").scale


def test_options_reach_the_estimator(store: Path) -> None:
    options = ("--no-center", "--whiten", "--solver", "covariance", "--nan-policy", "omit", "--solve-threads", 1)
    assert run("fit", store, "--model", "m.zarr", "-k", "all", *options).exit_code == 0
    parameters = bp.load("m.zarr").get_params()
    expected = {"center": False, "whiten": True, "solver": "covariance", "nan_policy": "omit"}
    assert {name: parameters[name] for name in expected} == expected
    assert bp.load("m.zarr").n_components_ == COLUMNS


VALUES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("--preprocess", "l2"), {"preprocess": [bp.preprocessing.L2()]}),
    (
        ("--preprocess", "power:0.3, l2:keep"),
        {"preprocess": [bp.preprocessing.Power(0.3), bp.preprocessing.L2(zero_rows="keep")]},
    ),
    (("--whitening", "0.25:0.01:l2"), {"whiten": bp.scales.Whitening(0.25, 0.01, l2=True)}),
    (("--scale-by", "scale.npy", "--sketch", "gaussian:10"), {"scale": list(range(1, COLUMNS + 1))}),
]


@pytest.mark.parametrize(("options", "expected"), VALUES)
def test_options_of_values_are_records(store: Path, options: tuple[str, ...], expected: dict[str, Any]) -> None:
    np.save("scale.npy", np.arange(1.0, COLUMNS + 1))
    result = run("fit", store, "--model", "m.zarr", "-k", 2, *options)
    assert result.exit_code == 0, result.output
    parameters = bp.load("m.zarr").get_params()
    for name, value in expected.items():
        found = parameters[name]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value
    info = run("info", "m.zarr", "-v")
    assert info.exit_code == 0, info.output
    assert "'record'" not in info.stdout
    for name, value in expected.items():
        written = f"numbers of shape ({COLUMNS},)" if name == "scale" and isinstance(value, list) else str(value)
        assert f"{name} = {written}" in " ".join(info.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--preprocess", "l3"), "'l3' is not valid: 'l3' is not known. Applied to each row first: l2, power"),
        (("--preprocess", "power:x"), "exponent = 'x' is a str; a number in (0, 1] was expected"),
        (("--preprocess", "power:3"), "exponent = 3 is outside (0, 1]"),
        (("--whitening", "much"), "'much' is not valid: it is not a number. Divide scores by a power"),
        (("--whitening", "0.5:-1"), "epsilon = -1 is outside [0, inf)"),
        (("--scale-by", "patersen"), "patterson, patterson:PLOIDY, or the divisors in a .npy file"),
        (("--scale", "--scale-by", "patterson"), "--scale and --scale-by set the same parameter"),
        (("--kernel", "rbf", "--whitening", "0.5"), "KernelPCA does not use --whitening"),
    ],
)
def test_values_that_are_not_known_are_wrong_usage(store: Path, options: tuple[str, ...], message: str) -> None:
    result = run("fit", store, *options)
    assert (result.exit_code, message in words(result.stderr)) == (2, True), result.stderr


def test_transform_writes_statistics_in_place_of_scores(store: Path) -> None:
    run("fit", store, "-k", 3)
    record = run_json("transform", store, "--statistics", "t2, spe", "--scores", "s.zarr")
    assert (record["exit_code"], record["shape"], record["statistics"]) == (0, [ROWS, 2], ["t2", "spe"])
    expected = bp.load("model.zarr").statistics(bp.open(store), ["t2", "spe"]).compute()
    np.testing.assert_allclose(bp.open("s.zarr").compute(), expected, rtol=1e-5)
    unknown = run_json("transform", store, "--statistics", "q", "--scores", "q.zarr")
    assert "'q' is not a statistic" in unknown["error"]["message"]
    bp.SketchTransformer(bp.sketches.Gaussian(2)).fit(bp.open(store)).save("sketch.zarr")
    failed = run_json("transform", store, "--model", "sketch.zarr", "--statistics", "spe", "--scores", "q.zarr")
    assert "but this model is a SketchTransformer" in failed["error"]["message"]


def test_transform_corrects_scores_for_shrinkage(store: Path) -> None:
    model = bp.PCA(2).fit(bp.open(store))
    model.save("model.zarr")
    assert run_json("transform", store, "--shrinkage", "oadp", "--scores", "s.zarr")["exit_code"] == 0
    expected = model.transform(bp.open(store), shrinkage="oadp").compute()
    np.testing.assert_allclose(bp.open("s.zarr").compute(), expected, rtol=1e-5)
    assert run("transform", store, "--shrinkage", "factor", "--scores", "s.zarr").exit_code == 5  # other scores
    both = run("transform", store, "--shrinkage", "oadp", "--statistics", "spe", "--scores", "q.zarr")
    assert "Leave out --shrinkage" in both.output
    bp.FactorAnalysis(2).fit(bp.open(store)).save("factors.zarr")
    failed = run_json("transform", store, "--model", "factors.zarr", "--shrinkage", "oadp", "--scores", "q.zarr")
    assert "corrects the scores of PCA, but the model is a FactorAnalysis" in failed["error"]["message"]


def test_scores_with_keys_become_a_table_and_info_shows_how_they_were_made(store: Path) -> None:
    run("fit", store, "-k", 2)
    keys = [f"image {i}" for i in range(ROWS)]
    Path("labels.csv").write_text("\n".join(["name", *keys]))
    for scores in ("s.parquet", "s.zarr"):
        run("transform", store, "--scores", scores, "--keys", "labels.csv::name")
        assert np.array_equal(np.array(bp.data.stored_keys(scores)), keys)
    assert pq.read_table("s.parquet").column_names == ["key", "pca0", "pca1"]
    run("transform", store, "--scores", "s.parquet", "--overwrite")
    assert pq.read_table("s.parquet").column_names == ["pca0", "pca1"]
    of_model, of_scores = (run_json("info", path)["provenance"] for path in ("model.zarr", "s.zarr"))
    assert of_model["source"] == of_scores["source"] == str(store)
    assert of_model["model"] == of_scores["model"]
    assert of_model["peak_bytes"] >= 0
    shown = run("info", "model.zarr").stdout
    assert all(text in shown for text in ("made by", "once (planned: 1)", "above idle (planned: "))
    assert line_of(run("info", "s.zarr").stdout, "keys") == "3,000, such as 'image 0'"


def test_ingest_copies_and_converts(store: Path) -> None:
    for number in range(2):
        np.save(f"part_{number}.npy", np.full((10, 4), number, "float32"))
    record = run_json("ingest", "part_*.npy", "parts.zarr", "--dtype", "float16", "--chunk-rows", 7)
    assert (record["exit_code"], record["rows"], record["dtype"]) == (0, 20, "float16")
    np.testing.assert_array_equal(bp.open("parts.zarr")[:, 0].compute(), [0] * 10 + [1] * 10)


def test_info_distinguishes_a_model_from_data(store: Path) -> None:
    run("fit", store, "-k", 3)
    assert run_json("info", "model.zarr")["n_components"] == 3
    bp.RotatedPCA.of(bp.load("model.zarr")).save("rotated.zarr")
    rotated = run_json("info", "rotated.zarr")
    assert (rotated["estimator"], rotated["parameters"]["rotation"]) == ("RotatedPCA", "varimax")
    assert (rotated["n_components"], rotated["n_features_in"]) == (3, COLUMNS)
    rows, weights = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 3
    bp.FisherDiscriminantAnalysis().fit(rows, weights % 2, sample_weight=weights).save("weighted.zarr")
    assert run_json("info", "weighted.zarr")["n_samples"] == np.count_nonzero(weights)
    weighted = bp.NystromKernelPCA(2, kernel="rbf", sampling=rows[:9]).fit(rows, sample_weight=weights)
    weighted.save("kernel.zarr")
    np.testing.assert_allclose(run_json("info", "kernel.zarr")["explained_variance"], weighted.explained_variance_)
    data = run_json("info", store)
    assert (data["rows"], data["columns"], data["dtype"]) == (ROWS, COLUMNS, "float32")
    assert "3,000" in run("info", store).stdout


def test_verify_is_quiet_about_a_sound_store_and_exits_3_on_damage(store: Path) -> None:
    assert run("verify", store).exit_code == 0
    chunk = store / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    result = run("verify", store)
    assert result.exit_code == 3
    assert "c/2/0" in result.stdout
    assert run_json("verify", store)["ok"] is False


def test_doctor_shows_versions_and_passes_its_self_test() -> None:
    record = run_json("doctor")
    assert (record["exit_code"], record["problems"], record["self_test"]["passed"]) == (0, [], True)
    assert record["versions"]["numpy"] == np.__version__
    assert record["memory_bytes"] > 0
    assert record["cores"] >= 1


def test_the_small_demo_keeps_to_its_budget_and_draws_a_picture(tmp_path: Path) -> None:
    record = run_json("demo", "--small", "--dir", tmp_path / "demo")
    assert (record["exit_code"], record["within_budget"], record["passes"]) == (0, True, 1)
    assert 0 < record["peak_bytes"] < 512 * 2**20
    assert Path(record["picture"]).read_bytes().startswith(b"\x89PNG")
    assert bp.open(record["scores"]).shape == (32_500, 64)
    names = ["components.png", "model.zarr", "patches.zarr", "scores.zarr"]
    assert sorted(os.listdir(tmp_path / "demo")) == names
    result = run("demo", "--small", "--dir", tmp_path / "demo")
    assert (result.exit_code, "Remove that of an earlier demonstration" in words(result.stderr)) == (5, True)
    assert sorted(os.listdir(tmp_path / "demo")) == names


def test_the_demo_says_what_to_install_where_it_cannot_read_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = run("demo", "--small", "--dir", tmp_path / "demo")
    assert result.exit_code == 3
    assert "photographs are read by Pillow. Run pip install 'bigpca[plot]'" in words(result.stderr)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, bigpca.cli; print([m for m in ('numpy', 'dask', 'sklearn', 'zarr') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_help_and_version_answer() -> None:
    shown = run("--help").output
    for code in MEANINGS:
        assert f" {int(code)}  " in shown
    assert run("--version").output.startswith("bigpca ")


@pytest.mark.parametrize("kept", [40, 43, 7])
def test_an_update_reads_only_the_rows_that_were_appended(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*command: Any) -> str:
        result = run("fit", "g.zarr", *command)
        assert result.exit_code != 0
        return words(result.output)

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5)).astype("f4")
    grown = zarr.create_array("g.zarr", shape=(kept, 5), chunks=(8, 5), dtype="f4")
    grown[:] = X[:kept]
    assert run("fit", "g.zarr", "--model", "m.zarr").exit_code == 0
    record = run_json("fit", "g.zarr", "--update", "m.zarr", "--model", "n.zarr")
    assert (record["exit_code"], record["appended"], record["model"]) == (0, 0, "m.zarr")
    assert not Path("n.zarr").exists()
    grown.append(X[kept:])
    for _ in range(2):  # the same line again
        record = run_json("fit", "g.zarr", "--update", "m.zarr", "--model", "n.zarr")
        assert (record["exit_code"], record["appended"]) == (0, 60 - kept)
    found, expected = bp.load("n.zarr"), bp.PCA().fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    assert (found.n_samples_, found.provenance_.rows) == (60, 60)
    assert run_json("fit", "g.zarr", "--update", "n.zarr", "--model", "n.zarr")["appended"] == 0
    assert "exists already" in said("--update", "m.zarr", "--model", "m.zarr")
    grown[3] = 7
    assert "are not the same: they changed" in said("--update", "m.zarr", "--model", "o.zarr")
    bp.PCA().fit(X).save("memory.zarr")
    assert "has no record of its rows" in said("--update", "memory.zarr", "--model", "o.zarr")
    assert "a method and parameters" in said("--update", "m.zarr", "-k", 2, "--model", "o.zarr")


@pytest.mark.parametrize(("kept", "chunk"), [(40, 16), (43, 1000)])
def test_an_update_reads_only_the_sparse_rows_that_were_appended(
    kept: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        return words(run("fit", "g.zarr", "--update", "m.zarr", "--model", "o.zarr").output)

    monkeypatch.chdir(tmp_path)
    X = counts("f4", 61, 6)
    grown = zarr.open_group("g.zarr", mode="w").create_group("X")
    write_parts(grown, X[:kept], {"chunks": (chunk,)})
    assert run("fit", "g.zarr", "--model", "m.zarr").exit_code == 0
    assert "0 rows" in said()
    for part, values in {"data": X.data, "indices": X.indices, "indptr": X.indptr}.items():
        grown[part].append(values[grown[part].shape[0] :])
    grown.attrs["shape"] = list(X.shape)
    record = run_json("fit", "g.zarr", "--update", "m.zarr", "--model", "n.zarr")
    assert (record["exit_code"], record["appended"]) == (0, 61 - kept)
    found, expected = bp.load("n.zarr"), bp.PCA().fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5, atol=1e-6)
    assert (found.n_samples_, found.provenance_.rows) == (61, 61)
    ends = X.indptr.copy()
    row = int(np.flatnonzero(np.diff(ends[:kept]))[-1])
    ends[row + 1] = ends[row]  # its values belong to the next row
    grown["indptr"][:] = ends
    assert "are not the same: they changed" in said()
    grown["indptr"][:], grown["data"][5] = X.indptr, 7
    assert "are not the same: they changed" in said()


SUPERVISED_UPDATES: dict[str, tuple[list[str], list[str]]] = {
    "numbers": (["--method", "supervised"], ["--labels", "y.csv::number"]),
    "kernel": (
        ["--method", "supervised", "--kernel", "rbf", "--gamma", "0.1", "--landmarks", "9"],
        ["--labels", "y.csv::class"],
    ),
    "weighted classes": (["--method", "fisher"], ["--labels", "y.csv::class", "--weights", "w.npy"]),
    "groups": ([], ["--groups", "y.csv::class", "--weights", "w.npy"]),
}


@pytest.mark.parametrize("name", SUPERVISED_UPDATES)
def test_an_update_takes_what_belongs_to_all_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    method, files = SUPERVISED_UPDATES[name]
    rng, codes, weights = np.random.default_rng(0), np.arange(90) % 3, np.arange(90) % 4 + 0.5
    X = (rng.standard_normal((90, 4)) + 3 * np.eye(4)[codes]).astype("f4")
    labels = {"class": np.array(["ape", "bee", "cod"])[codes], "number": X[:, 0].astype("f8") ** 2}

    def write(n: int) -> None:
        lines = zip(*(values[:n].tolist() for values in labels.values()), strict=True)
        Path("y.csv").write_text("class,number\n" + "".join(f"{one},{two!r}\n" for one, two in lines))
        np.save("w.npy", weights[:n])

    grown = zarr.create_array("g.zarr", shape=(50, 4), chunks=(8, 4), dtype="f4")
    grown[:] = X[:50]
    write(50)
    assert run("fit", "g.zarr", *method, *files, "--model", "m.zarr").exit_code == 0
    grown.append(X[50:])
    update = ("fit", "g.zarr", "--update", "m.zarr", "--model", "n.zarr")
    assert "90 rows" in words(run(*update, *files).output)
    write(90)
    assert "for all rows, old and new" in words(run(*update).output)
    assert run_json(*update, *files)["appended"] == 40
    new = [labels[column][50:] for column in labels if f"y.csv::{column}" in files and "--labels" in files]
    given = {"sample_weight": weights[50:]} if "w.npy" in files else {}
    given |= {"groups": labels["class"][50:]} if "--groups" in files else {}
    expected = bp.load("m.zarr").partial_fit(X[50:], *new, **given)
    np.testing.assert_allclose(np.abs(bp.load("n.zarr").transform(X)), np.abs(expected.transform(X)), rtol=1e-5)
    if not new:
        assert "takes no labels" in words(run(*update, *files, "--labels", "y.csv::class", "--overwrite").output)


def test_the_same_line_again_says_that_nothing_is_read(store: Path) -> None:
    first, again = (words(run("fit", store, "-k", 2, "--model", "twice.zarr").stdout) for _ in range(2))
    assert "reads all rows once" in first
    assert "reads nothing again: an earlier run read all rows" in again


def test_weights_are_joined_by_key_and_rejected_where_the_key_is_missing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, weights, names = rng.standard_normal((30, 4)), np.arange(30) % 4, np.array([f"r{i}.jpg" for i in range(30)])
    bp.ingest(X, "keyed.zarr", keys=names)
    bp.ingest(X, "plain.zarr")
    order = rng.permutation(30)
    lines = "".join(f"{names[i]},{weights[i]},{i % 3}\n" for i in order)
    Path("w.csv").write_text("name,weight,class\n" + lines)
    Path("short.csv").write_text("name,weight\n" + "".join(f"{names[i]},1\n" for i in range(29)))
    np.save("w.npy", weights)
    given = ("fit", "keyed.zarr", "-k", 2, "--model")
    shown = run(*given, "m.zarr", "--weights", "w.csv::weight", "--key", "name")
    assert "weights 30" in words(shown.stdout)
    assert run(*given, "n.zarr", "--weights", "w.npy").exit_code == 0  # no columns: in the order of the rows
    assert run(*given, "k.zarr", "--weights", "w.csv::weight").exit_code == 0  # the column of keys is found
    expected = bp.PCA(2).fit(X, sample_weight=weights)
    for model in ("m.zarr", "n.zarr", "k.zarr"):
        np.testing.assert_allclose(bp.load(model).explained_variance_, expected.explained_variance_, rtol=1e-12)
    for source, files, said in (
        ("plain.zarr", ("--weights", "w.csv::weight"), "the weights in w.csv have keys, such as"),
        ("plain.zarr", ("--weights", "w.csv::weight", "--key", "name"), "bigpca ingest ... --keys"),
        ("keyed.zarr", ("--weights", "short.csv::weight", "--key", "name"), "1 of 30 rows have no weight: 'r29.jpg'"),
        ("plain.zarr", ("--weights", "short.csv::weight", "--by-position"), "there are 29 weights, but X has 30 rows"),
        ("keyed.zarr", ("--weights", "w.csv::height", "--key", "name"), "w.csv has no column 'height'"),
        ("keyed.zarr", ("--key", "name"), "--key requires --labels, --weights or --groups"),
        ("keyed.zarr", ("--weights", "w.npy", "--key", "name"), "w.npy has no columns"),
    ):
        rejected = run("plan", source, "-k", 2, *files)
        assert rejected.exit_code != 0
        assert said in words(rejected.stderr)


def test_groups_and_rules_with_values_are_those_of_the_library(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    days, names = np.array([f"day{i // 30}" for i in range(120)]), [f"r{i}.jpg" for i in range(120)]
    X = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 6)) * 3 + rng.standard_normal((120, 6))
    bp.ingest(X, "keyed.zarr", keys=names)
    lines = [f"{names[i]},{days[i]}" for i in rng.permutation(120)]
    Path("days.csv").write_text("\n".join(["name,day", *lines]))
    for i, (k, rule) in enumerate(
        (
            ("cross-validated", bp.rules.CrossValidated()),
            ("cross-validated:3:likelihood", bp.rules.CrossValidated(3, "likelihood")),
        )
    ):
        for j, (files, given) in enumerate(((("--groups", "days.csv::day"), {"groups": days}), ((), {}))):
            shown = run("fit", "keyed.zarr", "-k", k, *files, "--model", f"{i}{j}.zarr")
            assert shown.exit_code == 0, shown.output
            assert ("groups 120, joined by the key name" in words(shown.stdout)) == bool(files), shown.stdout
            found, expected = bp.load(f"{i}{j}.zarr"), bp.PCA(rule).fit(bp.open("keyed.zarr"), **given)
            assert (by_name(found.n_components), found.n_components_) == (rule, expected.n_components_)
            np.testing.assert_allclose(found.cv_errors_, expected.cv_errors_, rtol=1e-9)
    assert bp.load("00.zarr").groups_.tolist() == ["day0", "day1", "day2", "day3"]
    for arguments, said in (
        (("--groups", "days.csv::date"), "days.csv has no column 'date'. Name the one that holds the groups"),
        (("--groups", "days.csv::day", "--kernel", "rbf"), "groups were passed to this KernelPCA, which uses none"),
        (("-k", "cross-validated:1"), "cv = 1; 2 to 20 folds were expected"),
        (("-k", "patterson:2"), "'patterson' is not known"),
        (("-k", "cross-validate:5"), "Did you mean cross-validated?"),
    ):
        rejected = run("plan", "keyed.zarr", *arguments)
        assert rejected.exit_code != 0
        assert said in words(rejected.stderr), rejected.stderr


LINES: dict[str, tuple[str, ...]] = {
    "store": ("--scores", "s.zarr", "--checkpoint", "c"),
    "table": ("--scores", "s.parquet"),
    "labels": ("--method", "fisher", "--labels", "y.csv::class", "--scores", "s.zarr"),
}


@pytest.fixture(params=["disk", "objects"])
def at(request: pytest.FixtureRequest) -> str:
    """What stands before the names of outputs: nothing, or the URL of a folder in an object store."""
    if request.param == "disk":
        return ""
    request.getfixturevalue("object_server")
    return f"s3://rows/{uuid4().hex}/"  # a folder of its own: what a store does about conditions is kept by folder


COPIES: dict[str, tuple[str, ...]] = {  # commands of one output, which is the last word
    "ingest": ("ingest", "x.zarr", "--dtype", "float64", "--out", "o.zarr"),
    "ingest with keys": ("ingest", "x.zarr", "--keys", "k.csv::name", "--out", "o.zarr"),
    "scores": ("transform", "x.zarr", "--keys", "k.csv::name", "--scores", "o.zarr"),
    "scores in halves": ("transform", "x.zarr", "--dtype", "float16", "--scores", "o.zarr"),
    "a table": ("transform", "x.zarr", "--scores", "o.parquet"),
    "statistics": ("transform", "x.zarr", "--statistics", "t2,spe", "--scores", "o.parquet"),
}


@pytest.mark.parametrize("line", COPIES.values(), ids=COPIES)
def test_a_copy_or_scores_that_the_same_line_has_made_are_kept(
    line: tuple[str, ...], at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a stop between the end of the output and that of the process."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((60, 5)).astype("f4")
    rows = zarr.create_array("x.zarr", data=X, chunks=(8, 5))
    bp.PCA(2).fit(X).save("model.zarr")
    names = [f"r{i}" for i in range(60)]
    Path("k.csv").write_text("\n".join(["name", *names]))
    command = (*line[:-1], f"{at}{line[-1]}")
    first = run_json(*command)
    before = bp.open(command[-1]).compute()
    with monkeypatch.context() as patch:
        for owner, name in ((bp, "ingest"), (bp.PCA, "transform"), (bp.PCA, "statistics")):
            patch.setattr(owner, name, None)  # none of them is called
        again = run_json(*command)
    assert again["exit_code"] == 0, again
    same = ("shape", "statistics", "rows", "dtype")
    assert [again.get(name) for name in same] == [first.get(name) for name in same]
    np.testing.assert_array_equal(bp.open(command[-1]).compute(), before)
    assert run(*command[:-2], "--columns", "4,3,2,1,0", *command[-2:]).exit_code == 5
    if "k.csv::name" in line:
        Path("k.csv").write_text("\n".join(["name", *names[::-1]]))
        assert run(*command).exit_code == 5
        Path("k.csv").write_text("\n".join(["name", *names]))
    if line[0] == "transform":
        bp.PCA(2).fit(-2 * X).save("model.zarr", overwrite=True)
    else:
        rows[3] = 7
    assert run(*command).exit_code == 5


VIEWED: dict[str, tuple[str, list[str]]] = {  # what is read, and what makes a view of it
    "columns": ("x.zarr", ["--columns", "3,0,1"]),
    "named columns": ("x.parquet", ["--columns", "d,a,b"]),
    "tokens": ("maps.zarr", ["--pattern", "n t d -> (n t) d"]),
    "some tokens": ("maps.zarr", ["--pattern", "n t d -> (n t) d", "--axis", "t=1:", "--columns", "0:3"]),
    "a code": ("x.zarr", ["--missing-value", "7"]),
    "a member": ("x.h5", ["--member", "a"]),
    "dimensions": ("x.nc", ["--sample-dims", "y,x"]),
    "a list": ("x.zarr y.zarr", []),
    "some columns of a list": ("x.zarr y.zarr", ["--columns", "3,0,1"]),
    "a list of tables": ("x.parquet y.parquet", ["--columns", "d,a,b"]),
}


@pytest.mark.parametrize(("source", "view"), VIEWED.values(), ids=VIEWED)
def test_the_same_line_with_a_view_is_kept_and_its_model_is_updated(
    source: str, view: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    maps = np.random.default_rng(0).standard_normal((48, 4, 5)).astype("f4")
    grown, named = None, source.split()
    whole = maps if source == "maps.zarr" else maps[:, 0]
    first = 0 if len(named) == 1 else 24
    if source.endswith(".zarr"):
        if first:
            zarr.create_array(named[0], data=whole[:first], chunks=(8, 5))
        grown = zarr.create_array(named[-1], data=whole[first:40], chunks=(8, *whole.shape[1:]))
    elif source.endswith(".parquet"):
        for name in named:
            pd.DataFrame(maps[:, 0], columns=list("abcde")).to_parquet(name)
    elif source == "x.h5":
        with h5py.File(source, "w") as file:
            file["a"], file["b"] = maps[:, 0], maps[:, 1]
    else:
        xr.Dataset({"t": (("time", "y", "x"), maps)}).to_netcdf(source)
    lines = (
        ["ingest", *named, *view, "--out", "o.zarr"],
        ["fit", *named, "-k", 2, *view, "--model", "m.zarr"],
        ["transform", *named, *view, "--model", "m.zarr", "--scores", "s.zarr"],
    )
    for line in lines:
        assert run(*line).exit_code == 0
        with monkeypatch.context() as patch:
            for owner, name in ((bp, "ingest"), (bp.PCA, "transform"), (bp.PCA, "fit")):
                patch.setattr(owner, name, None)  # none of them is called
            again = run(*line)
        assert again.exit_code == 0, again.output
        assert "kept" in words(again.output)
    update = ["fit", *named, *view, "--update", "m.zarr", "--model", "n.zarr"]
    assert run_json(*update)["appended"] == 0
    if grown is None:
        return
    grown.append(whole[40:])
    for _ in range(2):
        assert run_json(*update)["exit_code"] == 0
    assert run("fit", *named, "-k", 2, *view, "--model", "whole.zarr").exit_code == 0
    found, expected = bp.load("n.zarr"), bp.load("whole.zarr")
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-5)
    assert found.n_samples_ == expected.n_samples_
    np.testing.assert_allclose(bp.open("s.zarr"), bp.load("m.zarr").transform(whole[:40]), atol=1e-5)
    other = run("fit", *named, "--columns", "0,1", "--update", "m.zarr", "--model", "z.zarr")
    assert "or are read with other options, such as --columns" in words(other.output)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_same_line_continues_after_a_stop_between_its_outputs(
    line: tuple[str, ...], at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does nothing, without an error, where all is made; another line, other rows or labels are an error."""
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((60, 5)).astype("f4")
    rows = zarr.create_array("x.zarr", shape=(60, 5), chunks=(8, 5), dtype="f4")
    rows[:] = X
    Path("y.csv").write_text("class\n" + "a\nb\nc\n" * 20)
    line = tuple(f"{at}{word}" if word in ("s.zarr", "s.parquet", "c") else word for word in line)
    command = ("fit", "x.zarr", "-k", 2, "--model", f"{at}m.zarr", *line)
    scores = next(word for word in line if word.startswith(f"{at}s."))

    class Stop(BaseException):
        pass

    def stopped(*_: Any, **__: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr("bigpca.estimators.shared.transformer.Estimator.transform", stopped)
        with pytest.raises(Stop):
            run(*command)
    digest = bp.load(f"{at}m.zarr").components_.tobytes()
    with monkeypatch.context() as patch:
        patch.setattr("bigpca.estimators.shared.transformer.Estimator.fit", stopped)
        for _ in range(2):
            record = run_json(*command)
            assert (record["exit_code"], record.get("scores")) == (0, scores), record
            np.testing.assert_allclose(bp.open(scores).compute(), bp.load(f"{at}m.zarr").transform(X), atol=1e-5)
        for other in (("-k", 1), ("--scale",), ("--scores", f"{at}t.npy", "--seed", 7)):
            assert run(*command, *other).exit_code in (2, 5), other
        if "--labels" in line:
            Path("y.csv").write_text("class\n" + "b\nb\nc\n" * 20)
            assert run(*command).exit_code == 5
        rows[3] = 7
        assert run(*command).exit_code == 5
    assert bp.load(f"{at}m.zarr").components_.tobytes() == digest
