"""Shards, labels and methods from the command line: what is fitted is what the library fits from the same arrays."""

import csv
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import bigpca as bp
from bigpca.cli.options import ESTIMATORS, OF_ROWS, OF_TARGETS
from bigpca.kernels import RBF
from tests.cli.running import line_of, run, run_json, words

N, D = 120, 6
CLASSES = np.array(["cat", "dog", "fox"])[np.arange(N) % 3]
KEYS = np.array([f"img_{row}.jpg" for row in range(N)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven shards in no alphabetical order, labels in a random one, and a store with keys."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((N, D)) + 3.0 * np.eye(3, D)[np.arange(N) % 3]
    for number, part in enumerate(np.array_split(rows, 11)):
        np.save(tmp_path / f"s_{number}.npy", part)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("filename", "species"), *((KEYS[row], CLASSES[row]) for row in rng.permutation(N))])
    (tmp_path / "ordered.csv").write_text(
        "filename,species\n" + "".join(f"{k},{c}\n" for k, c in zip(KEYS, CLASSES, strict=True))
    )
    np.save(tmp_path / "y.npy", CLASSES)
    bp.ingest(rows, tmp_path / "keyed.zarr", keys=KEYS)
    return tmp_path


def rows_of(folder: Path) -> Any:
    return bp.open("keyed.zarr").compute()


@pytest.mark.parametrize("command", [("plan",), ("fit",), ("ingest", "--out", "out.zarr")])
def test_paths_that_a_shell_expands_are_shards_in_natural_order(folder: Path, command: tuple[str, ...]) -> None:
    shards = sorted(path.name for path in folder.glob("s_*.npy"))  # s_1, s_10, s_2
    result = run(command[0], *shards, *command[1:])
    assert result.exit_code == 0, result.output
    assert line_of(result.stdout, "data") == "11 shards, s_0.npy to s_10.npy, in this order"
    assert f"{N} rows x {D} columns, float64, 5.6 KiB, 11 chunks" in result.stdout
    if command[0] == "ingest":
        np.testing.assert_array_equal(bp.open("out.zarr").compute(), rows_of(folder))


def test_an_order_that_is_not_alphabetical_is_kept(folder: Path) -> None:
    assert run("ingest", "s_2.npy", "s_10.npy", "s_1.npy", "--out", "out.zarr").exit_code == 0
    expected = np.concatenate([np.load(f"s_{number}.npy") for number in (2, 10, 1)])
    np.testing.assert_array_equal(bp.open("out.zarr").compute(), expected)
    lexicographic = bp.open(["s_1.npy", "s_10.npy", "s_2.npy"]).compute()  # a list in Python is never sorted
    np.testing.assert_array_equal(lexicographic, np.concatenate([np.load(f"s_{i}.npy") for i in (1, 10, 2)]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ingest", "s_1.npy", "s_2.npy"), "Add --out STORE"),
        (("ingest", "s_1.npy", "s_2.npy", "s_3.npy"), "Add --out STORE"),
        (("fit", "s_1.npy", "s_1.npy"), "s_1.npy is given twice"),
        (("fit", "keyed.zarr", "--labels", "labels.csv::species"), "--method pca does not use labels. Choose another"),
        (("fit", "keyed.zarr", "--method", "fisher"), "requires labels. Add --labels FILE::COLUMN"),
        (("fit", "keyed.zarr", "--method", "fischer"), "'fischer' is not one of 'pca', 'factor'"),
        (("fit", "keyed.zarr", "--landmarks", 9), "--method pca cannot be used with --landmarks; it takes"),
        (("fit", "keyed.zarr", "--gamma", 0.1), "PCA does not use --gamma. Leave out --gamma."),
        (("fit", "keyed.zarr", "--kernel", "rbf", "--whiten"), "KernelPCA does not use --whiten"),
        (("fit", "keyed.zarr", "-k", "elbo"), "Did you mean elbow?"),
        (("fit", "keyed.zarr", "--key", "filename"), "--key requires --labels"),
        (("plan", "keyed.zarr", "--solver", "krilov"), "Did you mean krylov?"),
        (("fit", "keyed.zarr", "--method", "cca"), "requires targets. Add --targets SOURCE"),
        (("fit", "keyed.zarr", "--targets", "y.npy"), "does not use targets. Choose another --method"),
        (("fit", "keyed.zarr", "--method", "ridge", "--labels", "y.npy"), "--method ridge does not use labels. Choose"),
        (("fit", "keyed.zarr", "--method", "ridge", "-k", 2, "--targets", "y.npy"), "does not use --n-components"),
        (("fit", "keyed.zarr", "--method", "ridge", "--targets", "s_1.npy", "--alpha", "a"), "0.1,1,10"),
        (("plan", "keyed.zarr", "--columns", ","), "chooses no columns. Write a range such as 0:512"),
        (("plan", "keyed.zarr", "--pattern", "n d -> n d", "--axis", "d"), "is not an axis of a pattern"),
        (("fit", "keyed.zarr", "--kernel", "gaussian"), "Did you mean rbf?"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(folder: Path, arguments: tuple[Any, ...], message: str) -> None:
    (folder / "model.zarr").mkdir()  # which is found only after that
    result = run(*arguments)
    assert (result.exit_code, message in words(result.stderr)) == (2, True), result.stderr


def test_rows_of_a_pattern_are_planned_fitted_labelled_and_cut_again(folder: Path) -> None:
    rows = np.asarray(rows_of(folder)).reshape(20, 2, 3, D)
    np.save("maps.npy", rows.transpose(0, 3, 1, 2))
    np.save("kinds.npy", np.arange(20) % 2)
    pattern = ("--pattern", "n c h w -> (n h w) c", "--axis", "h=1:", "--columns", "4,0,2")
    chosen = rows[:, 1:].reshape(-1, D)[:, [4, 0, 2]]
    assert run_json("plan", "maps.npy", *pattern)["plan"]["bytes_read"] == rows.nbytes
    fitted = run("fit", "maps.npy", *pattern, "--method", "fisher", "--labels", "kinds.npy", "--model", "m.zarr")
    assert fitted.exit_code == 0, fitted.output
    assert "kinds.npy, by position: label 1 belongs to row 1; each for the 3 rows of its sample" in words(fitted.stdout)
    truth = bp.FisherDiscriminantAnalysis().fit(chosen, np.repeat(np.arange(20) % 2, 3))
    assert run("transform", "maps.npy", "--model", "m.zarr", "--scores", "s.zarr").exit_code == 0
    np.testing.assert_allclose(bp.open("s.zarr").compute(), truth.transform(chosen), rtol=0, atol=1e-9)
    assert line_of(run("info", "m.zarr").stdout, "pattern") == "n c h w -> (n h w) c; h 1:; columns 3 chosen"


def test_coded_genotypes_are_fitted_with_their_code(folder: Path) -> None:
    calls = np.random.default_rng(1).integers(-1, 3, (60, 8)).astype("i1")
    np.save("calls.npy", calls)
    options = ("--missing-value", -1, "--nan-policy", "mean", "--scale-by", "patterson")
    said = run("fit", "calls.npy", *options, "-k", 2, "--model", "m.zarr")
    assert said.exit_code == 0, said.output
    assert "of the entries are missing and were replaced by the means of their columns" in words(said.stderr)
    model = bp.load("m.zarr")
    assert model.get_params() == bp.PCA(2, nan_policy="mean", scale=bp.scales.Patterson()).get_params()
    assert line_of(run("info", "m.zarr").stdout, "pattern") == "-1 is missing"
    assert run("transform", "calls.npy", "--model", "m.zarr", "--scores", "s.zarr").exit_code == 0
    np.testing.assert_array_equal(bp.open("s.zarr").compute(), model.transform(calls))
    assert run("fit", "calls.npy", "--missing-value", "inf").exit_code == 3


def test_several_codes_are_those_of_open(folder: Path) -> None:
    values = np.random.default_rng(1).integers(0, 9, (60, 3)).astype("f4")
    values[3, 1], values[5, 2] = -1, -9
    np.save("x.npy", values)
    options = ("--missing-value", "-1,-9", "--nan-policy", "omit", "-k", 1)
    assert run("fit", "x.npy", *options, "--model", "m.zarr").exit_code == 0
    model = bp.PCA(1, nan_policy="omit").fit(bp.open("x.npy", missing_value=[-1, -9]))
    assert bp.load("m.zarr").n_omitted_ == model.n_omitted_ == 2
    for bad in ("a=", "=3"):
        wrong = run("fit", "x.npy", "--missing-value", bad)
        assert f"'{bad}' is not a code such as -1" in words(wrong.stderr)
    assert wrong.exit_code == 2


@pytest.mark.parametrize(("fill", "of_missing"), [("none", None), ("-32767", -32767)])
def test_filled_numbers_of_netcdf_are_values_or_missing_as_the_command_says(
    folder: Path, fill: str, of_missing: int | None
) -> None:
    values = np.random.default_rng(1).integers(-9, 9, (60, 8)).astype("i2")
    values[7, 3] = -32767
    with h5py.File("x.nc", "w") as file:
        file.attrs["_NCProperties"] = "version=2"
        file["t"] = values
    options = ("x.nc", "--nan-policy", "omit", "-k", 2, "--model", "m.zarr", "--scores", "s.zarr")
    wrong, vague = run("fit", *options), run("fit", *options, "--fill", "nothing")
    assert re.search("row 7, column 3 of .* is -32767: netCDF-4", wrong.stderr)
    assert "'nothing' is neither none nor a number" in words(vague.stderr)
    assert (wrong.exit_code, vague.exit_code) == (3, 2)
    said = run("fit", *options, "--fill", fill)
    assert said.exit_code == 0, said.output
    expected = bp.PCA(2, nan_policy="omit").fit(bp.open("x.nc", fill=None, missing_value=of_missing))
    np.testing.assert_array_equal(bp.load("m.zarr").mean_, expected.mean_)
    with pytest.raises(ValueError, match="fill = -1 and missing_value = -2 are two codes"):
        bp.open("x.nc", fill=-1, missing_value=-2)


def test_a_linear_model_is_exported_as_its_matrix_and_as_a_file_of_onnx(folder: Path) -> None:
    assert run("fit", "keyed.zarr", "-k", 2, "--whiten", "--model", "m.zarr").exit_code == 0
    assert run_json("export", "m.zarr", "--out", "m.npz")["shape"] == [2, D]
    found, rows = np.load("m.npz"), rows_of(folder)
    np.testing.assert_allclose(rows @ found["A"].T + found["b"], bp.load("m.zarr").transform(rows), atol=1e-12)
    again = run("export", "m.zarr", "--out", "m.npz")
    assert (again.exit_code, "--overwrite" in again.stderr) == (5, True)
    pytest.importorskip("onnx")
    assert run("export", "m.zarr", "--out", "m.onnx").exit_code == 0
    assert run("fit", "keyed.zarr", "-k", 2, "--kernel", "rbf", "--model", "k.zarr").exit_code == 0
    assert "KernelPCA, which has no linear map" in words(run("export", "k.zarr", "--out", "k.npz").stderr)
    assert ".pkl cannot be written here. Choose .npz" in words(run("export", "k.zarr", "--out", "m.pkl").stderr)


def test_a_discriminant_is_regularized_by_a_number(folder: Path) -> None:
    options = ("keyed.zarr", "--method", "fisher", "--labels", "labels.csv::species", "--key", "filename")
    assert run("fit", *options, "--regularization", 0.5, "--model", "m.zarr").exit_code == 0
    assert bp.load("m.zarr").regularization == 0.5
    vague = run("fit", *options, "--regularization", "much")
    assert (vague.exit_code, "'much' is not valid: it is not a number" in words(vague.stderr)) == (2, True)


LABELLED = {
    "joined by key": (
        ("keyed.zarr", "--labels", "labels.csv::species", "--key", "filename"),
        "joined by the key filename",
    ),
    "the same keys in the same order": (
        ("keyed.zarr", "--labels", "ordered.csv::species", "--key", "filename"),
        "120, joined by the key filename, in the same order",
    ),
    "the other column": (("keyed.zarr", "--labels", "labels.csv", "--key", "filename"), "joined by the key filename"),
    "by position": (("s_*.npy", "--labels", "y.npy"), "y.npy, by position: label 1 belongs to row 1"),
    "said to be in order": (
        ("s_*.npy", "--labels", "ordered.csv::species", "--by-position"),
        "by position: label 1 belongs to row 1",
    ),
    "labels without keys": (("keyed.zarr", "--labels", "y.npy"), "belongs to row 1, for no column of it has keys like"),
}


@pytest.mark.parametrize("name", LABELLED)
def test_labels_meet_their_rows_by_key_and_by_position_only_if_there_are_no_keys(folder: Path, name: str) -> None:
    (source, *options), how = LABELLED[name]
    result = run("fit", source, "--method", "fisher", *options)
    assert result.exit_code == 0, result.output
    assert how in line_of(result.stdout, "labels")
    expected = bp.FisherDiscriminantAnalysis().fit(rows_of(folder), CLASSES)
    np.testing.assert_allclose(bp.load("model.zarr").eigenvalues_, expected.eigenvalues_, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "lines", "code", "message"),
    [
        (("--key", "filename"), ["img_0.jpg,cat"], 3, "119 of 120 rows have no label: 'img_1.jpg', 'img_2.jpg'"),
        (("--key", "filename"), [f"{key},cat" for key in (*KEYS, KEYS[7])], 3, "more than one label: 'img_7.jpg'"),
        (("--key", "filenam"), ["img_0.jpg,cat"], 3, "Did you mean filename?"),
        ((), ["img_0.jpg,cat"], 3, "119 of 120 rows have no label: 'img_1.jpg', 'img_2.jpg'"),
        (("--key", "filename", "--by-position"), ["img_0.jpg,cat"], 2, "Leave out one of them"),
    ],
)  # fmt: skip
def test_keys_that_are_missing_or_doubled_are_named(
    folder: Path, options: tuple[str, ...], lines: list[str], code: int, message: str
) -> None:
    (folder / "few.csv").write_text("\n".join(["filename,species", *lines]) + "\n")
    result = run("fit", "keyed.zarr", "--method", "fisher", "--labels", "few.csv::species", *options)
    assert result.exit_code == code, result.output
    assert message in words(result.stderr)


def test_rows_without_a_label_may_be_left_without_one(folder: Path) -> None:
    known = "\n".join(["filename,species", *(f"{KEYS[row]},{CLASSES[row]}" for row in range(60)), "other.jpg,cat"])
    (folder / "half.csv").write_text(known)
    options = ("--labels", "half.csv::species", "--key", "filename", "--missing-labels", "drop")
    result = run("fit", "keyed.zarr", "--method", "fisher", *options)
    assert result.exit_code == 0, result.output
    joined = "60, joined by the key filename; 60 rows have none, such as 'img_60.jpg'; 1 of half.csv belong to no row"
    assert joined in words(result.stdout)
    expected = bp.FisherDiscriminantAnalysis(missing_labels="drop").fit(rows_of(folder), [*CLASSES[:60], *[None] * 60])
    np.testing.assert_allclose(bp.load("model.zarr").eigenvalues_, expected.eigenvalues_, rtol=1e-12)


OPTIONS = {
    "kernel": ("--kernel", "rbf", "--gamma", 0.1),
    "landmarks": ("--landmarks", 20),
    "sketch": ("--sketch", "gaussian:6"),
}


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize("variant", ESTIMATORS, ids=" ".join)
def test_every_method_is_planned_fitted_applied_and_inspected(folder: Path, variant: tuple[str, ...]) -> None:
    method, *forms = variant
    labelled = () if method in OF_ROWS else ("--labels", "y.npy")
    source, k = "s_*.npy" if labelled else "keyed.zarr", ("-k", 2)
    if method in OF_TARGETS:
        np.save("targets.npy", rows_of(folder)[:, :2] ** 2)
        labelled, k = ("--targets", "targets.npy"), k if method != "ridge" else ("--alpha", "0.1,10", "--cv", 3)
    rows = rows_of(folder)
    if method == "correspondence":
        source, rows = "counts.npy", np.abs(rows)
        np.save(source, rows)
    labelled += ("--background", "cat") if method == "contrast" else ()
    if method == "generalized":
        np.save("metric.npy", np.diag(np.arange(1.0, D + 1)))
        labelled += ("--metric", "metric.npy")
    options = (source, *k, "--method", method, *labelled, *(one for form in forms for one in OPTIONS[form]))
    planned = run_json("plan", *options)
    fitted = run_json("fit", *options)
    assert (planned["exit_code"], fitted["exit_code"]) == (0, 0), (planned, fitted)
    assert (fitted["estimator"], fitted["n_components"]) == (ESTIMATORS[variant], 2)
    model = bp.load("model.zarr")
    parameters = model.get_params()
    if "landmarks" in forms:
        assert parameters["n_landmarks"] == fitted["landmarks"] == 20
    if "kernel" in forms:
        assert (parameters["kernel"], parameters["gamma"]) == ("rbf", 0.1)
        assert model.kernel_ == RBF(0.1)
        assert fitted["kernel"] == repr(RBF(0.1))
    written = run_json("transform", source, "--scores", "t.zarr")
    assert written["shape"] == [N, 2]
    np.testing.assert_allclose(bp.open("t.zarr").compute(), model.transform(rows), rtol=1e-5, atol=1e-6)
    inspected = run_json("info", "model.zarr")
    assert inspected["n_features_in"] == D
    assert inspected["estimator"] == ESTIMATORS[variant]
    for _, name in model._traits.summary:  # what the table of info has
        if name[0] != "_" and hasattr(model, name):
            np.testing.assert_array_equal(inspected[name.removesuffix("_")], getattr(model, name))
    shown = run("info", "model.zarr", "-v").stdout
    assert "kernel" not in forms or line_of(shown, "kernel ") == repr(RBF(0.1))
    assert f"{ESTIMATORS[variant]} of {N} rows x {D} columns" in shown
    assert method != "generalized" or f"metric = numbers of shape ({D}, {D})" in shown


def test_targets_are_read_beside_the_rows_again_and_two_sets_of_features_are_compared(folder: Path) -> None:
    X = rows_of(folder)
    store = zarr.create_array("x.zarr", shape=(N, D), chunks=(30, D), dtype="f8")
    store[:] = X
    store.resize((90, D))
    np.save("y.npy", X[:, :2] ** 2)
    np.save("part.npy", X[:90, :2] ** 2)
    said = run("fit", "x.zarr", "--method", "plssvd", "--no-scale", "--targets", "part.npy", "--model", "m.zarr")
    assert said.exit_code == 0, said.output
    assert line_of(said.stdout, "targets") == "90 rows x 2 columns, float64, 1.4 KiB, 1 chunk"
    assert re.search(r" covariance +share", said.stdout)
    assert line_of(run("info", "m.zarr").stdout, "model") == "PLSSVD of 90 rows x 6 columns, and 2 of targets"
    store.resize((N, D))
    store[90:] = X[90:]
    update = ("fit", "x.zarr", "--update", "m.zarr", "--model", "n.zarr")
    assert "for all rows, old and new" in words(run(*update).stderr)
    assert run_json(*update, "--targets", "y.npy")["appended"] == 30
    expected = bp.PLSSVD(2, scale=False).fit(X, X[:, :2] ** 2).singular_values_
    np.testing.assert_allclose(bp.load("n.zarr").singular_values_, expected, rtol=1e-10)
    np.save("one.npy", X[:, 0] ** 2)  # a number for each row
    assert run("fit", "x.zarr", "--method", "ridge", "--targets", "one.npy", "--model", "r.zarr").exit_code == 0
    np.testing.assert_allclose(bp.load("r.zarr").coef_.ravel(), bp.Ridge().fit(X, X[:, 0] ** 2).coef_, rtol=1e-9)


def test_a_quiet_command_prints_nothing_but_warnings(folder: Path) -> None:
    for command in (
        ("plan", "keyed.zarr"),
        ("fit", "keyed.zarr", "-k", 2),
        ("info", "model.zarr"),
        ("verify", "keyed.zarr"),
    ):
        result = run(*command, "--quiet")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_commands_are_listed_in_the_order_of_use() -> None:
    said = run("--help").stdout
    order = ["demo", "ingest", "plan", "fit", "transform", "report", "export", "info", "verify", "doctor"]
    places = [said.index(f"│ {name} ") for name in order]
    assert places == sorted(places)
    for name in order:
        said = run(name, "--help").stdout
        assert f"bigpca {name}" in said.split("Examples:")[1]


def test_a_fit_shows_its_groups_and_what_comes_next(folder: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((90, 6)) * np.arange(6, 0, -1)
    np.save("x.npy", rows)
    np.save("g.npy", np.arange(90) // 12)
    said = run("fit", "x.npy", "-k", 2, "--groups", "g.npy", "--model", "g.zarr").stdout
    assert line_of(run("info", "g.zarr").stdout, "groups") == "8: 0, 1, 2, 3, 4, ..."
    assert said.endswith("Next: bigpca report g.zarr\n")
    assert run_json("info", "g.zarr")["groups"] == list(range(8))
