"""Iterations and sketches from the command line: options reach the estimators, and what is known of the answer is
shown.
"""

import re
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca import settings
from bigpca.cli.options import ESTIMATORS, OPTIONS, record_of
from bigpca.sketches import SRHT, Downsample, FeatureHash, Gaussian, SparseSign
from tests.builders import assert_covered
from tests.cli.running import COLUMNS, ROWS, line_of, run, run_json, words

D = 300
KINDS = dict.fromkeys(ESTIMATORS.values())


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """White noise: no sketch and no two reads tell its eigenvalues."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((400, D))
    bp.ingest(rows, tmp_path / "flat.zarr", chunk_rows=100)
    return tmp_path / "flat.zarr"


def test_a_krylov_fit_takes_its_options_and_records_its_certificate(store: Path) -> None:
    options = ("--solver", "krylov", "--tol", "1e-4", "--max-passes", 7, "--seed", 3)
    record = run_json("fit", store, "-k", 2, "--model", "m.zarr", *options)
    model = bp.load("m.zarr")
    parameters = {name: model.get_params()[name] for name in ("solver", "tol", "max_passes", "random_state")}
    assert parameters == {"solver": "krylov", "tol": 1e-4, "max_passes": 7, "random_state": 3}
    certificate = record["certificate"]
    assert (certificate["converged"], record["warnings"]) == (True, [])
    assert certificate["reads"] == record["passes"] == model.n_passes_
    assert certificate["eigenvalue_bounds"] == model.eigenvalue_bounds_.tolist()
    assert certificate["captured_variance_bounds"] == model.captured_variance_bounds_.tolist()
    assert certificate["confidence"] == model.bounds_confidence_
    exact = bp.PCA(2, solver="covariance").fit(bp.open(store)).explained_variance_
    assert_covered(np.array(certificate["eigenvalue_bounds"]), exact)


def test_an_exact_fit_has_no_certificate(store: Path) -> None:
    record = run_json("fit", store, "-k", 2, "--model", "m.zarr")
    assert (record["certificate"], record["warnings"]) == (None, [])
    assert record["explained_variance"] == bp.load("m.zarr").explained_variance_.tolist()
    assert line_of(run("info", "m.zarr").stdout, "bounds") == "none needed: the answer is exact to rounding"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gaussian:6", Gaussian(6, random_state=5)),
        ("sparse-sign:10", SparseSign(10, random_state=5)),
        ("feature-hash:6", FeatureHash(6, random_state=5)),
        ("srht:6", SRHT(6, random_state=5)),
        ("downsample:3x2x2:3x1x1", Downsample((3, 2, 2), (3, 1, 1), random_state=5)),
    ],
)
def test_every_sketch_makes_an_approximation_with_that_seed(store: Path, text: str, expected: Any) -> None:
    assert replace(record_of(text, "sketches"), random_state=5) == expected
    assert run("fit", store, "-k", 2, "--sketch", text, "--seed", 5, "--approximation", "ritz").exit_code == 0
    model = bp.load("model.zarr")
    assert isinstance(model, bp.ApproximatePCA)
    assert (model.sketch, model.approximation, model.n_passes_) == (expected, "ritz", 2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sketch", "gaussian:6", "--tol", "0.1"), "--sketch needs one read and does not use --tol. Leave out"),
        (("--sketch", "srht:6", "--solver", "auto", "--max-passes", 3), "does not use --solver, --max-passes"),
        (("--approximation", "ritz"), "PCA does not use --approximation. Leave out --approximation."),
        (
            ("--sketch", "gauss:6"),
            "'gauss:6' is not valid: 'gauss' is not known. Did you mean gaussian? gaussian:500, sparse-sign:500",
        ),
        (("--sketch", "gaussian"), "'gaussian' is not valid: missing a required argument: 'q'. gaussian:500,"),
        (("--sketch", "gaussian:many"), "'gaussian:many' is not valid: q = 'many' is a str"),
        (("--sketch", "downsample:4x3"), "for images downsample:3x224x224:3x56x56"),
        (("--sketch", "sketch_from:1"), "'sketch_from' is not known"),
        (("--seed", "x"), "'x' is not valid: it is not a number. Seed of everything random (default: 0)."),
        (("--sketch", "gaussian:0"), "'gaussian:0' is not valid: q = 0 is below 1"),
        (("--sketch", "downsample:4x3:5x3"), "'downsample:4x3:5x3' is not valid: to = (5, 3) does not shrink"),
        (("--approximation", "magic"), "magic"),
        (("--max-passes", 1), "max_passes = 1 is outside [2, inf); a number of reads of at least 2"),
        (("--solver", "krylov", "--tol", 1.5), "tol = 1.5 is outside (0, 1)"),
        (("--max-passes", "all"), "'all' is not valid: it is not a number. krylov: maximum number of reads, or none"),
        (("--seed", -1), "--seed"),
        (("-k", "scree"), "or a rule: mle, elbow, gavish-donoho, marchenko-pastur"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_to_write(store: Path, arguments: tuple[Any, ...], message: str) -> None:
    for command in ("plan", "fit"):
        result = run(command, store, *arguments)
        assert result.exit_code == 2
        assert message in words(result.stderr)
    assert not Path("model.zarr").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sketch", "gaussian:13"), "q = 13 is over the 12 columns"),
        (("-k", 7, "--sketch", "gaussian:6"), "n_components = 7 exceeds the 6 columns of the sketch"),
    ],
)
def test_what_does_not_suit_the_data_exits_3(store: Path, arguments: tuple[Any, ...], message: str) -> None:
    result = run("fit", store, *arguments)
    assert (result.exit_code, message in result.stderr) == (3, True)


def test_a_doubtful_answer_is_warned_of_once_in_one_line_and_in_the_record(flat: Path) -> None:
    command = ("fit", flat, "-k", 5, "--sketch", "gaussian:20", "--overwrite")
    lines = [line for line in run(*command).stderr.splitlines() if "warning" in line]
    assert len(lines) == 1
    assert lines[0].startswith("bigpca: warning: the bounds certify 0 of 5 components")
    assert lines[0].endswith("which iterates to a tolerance.")
    record = run_json(*command)
    assert record["warnings"] == [lines[0].removeprefix("bigpca: warning: ")]
    assert record["certificate"]["converged"] is None


def test_an_iteration_that_did_not_converge_says_so_everywhere(flat: Path) -> None:
    options = ("-k", 5, "--solver", "krylov", "--tol", "1e-9", "--max-passes", 2)
    result = run("fit", flat, *options)
    assert result.exit_code == 0
    assert line_of(result.stdout, "converged").startswith("no, stopped after 3 reads. Raise max_passes")
    assert "bigpca: warning: the iteration stopped after 3" in result.stderr
    record = run_json("fit", flat, *options, "--overwrite")
    assert record["certificate"]["converged"] is False
    assert any("max_passes = 2" in text for text in record["warnings"])
    assert run_json("info", "model.zarr")["certificate"]["converged"] is False


def test_summary_and_info_show_eigenvalues_with_their_bounds(store: Path) -> None:
    fitted = run("fit", store, "-k", 2, "--sketch", "gaussian:12").stdout
    told = run("info", "model.zarr").stdout
    model = bp.load("model.zarr")
    for value, (lower, upper) in zip(model.explained_variance_, model.eigenvalue_bounds_, strict=True):
        for text in (fitted, told):
            assert re.search(rf"  {value:.6g} .* {lower:.6g} +{upper:.6g}$", text, re.MULTILINE)
    assert "2 of 2 components certified; they hold with probability" in words(fitted)
    assert line_of(told, "model") == f"ApproximatePCA of {ROWS:,} rows x {COLUMNS} columns"


def test_a_saved_sketch_is_described_and_transforms(store: Path) -> None:
    transformer = bp.SketchTransformer(Gaussian(5, random_state=2)).fit(bp.open(store))
    transformer.save("sketch.zarr")
    record = run_json("info", "sketch.zarr")
    assert (record["exit_code"], record["n_features_in"], record["estimator"]) == (0, COLUMNS, "SketchTransformer")
    assert record["parameters"]["sketch"] == repr(Gaussian(5, random_state=2))
    assert repr(Gaussian(5, random_state=2)) in run("info", "sketch.zarr", "-v").stdout
    written = run_json("transform", store, "--model", "sketch.zarr", "--scores", "s.zarr")
    assert (written["exit_code"], written["shape"]) == (0, [ROWS, 5])
    np.testing.assert_array_equal(bp.open("s.zarr").compute(), transformer.transform(bp.open(store)).compute())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("elbow", bp.rules.Elbow()),
        ("marchenko-pastur", bp.rules.MarchenkoPastur()),
        ("gavish-donoho", bp.rules.GavishDonoho()),
        ("parallel-analysis", bp.rules.ParallelAnalysis()),
    ],
)
def test_rules_for_the_number_of_components_have_names(store: Path, text: str, rule: Any) -> None:
    assert run("fit", store, "-k", text).exit_code == 0
    expected = bp.PCA(rule).fit(bp.open(store))
    assert bp.load("model.zarr").n_components_ == expected.n_components_
    for solver in ("covariance", "krylov") if text in ("elbow", "marchenko-pastur") else ("covariance",):
        assert bp.PCA(text, solver=solver).fit(bp.open(store)).n_components_ == expected.n_components_


@pytest.mark.parametrize("option", OPTIONS)
def test_the_default_that_help_names_is_that_of_the_first_method_with_the_option(option: str) -> None:
    name, parameter = OPTIONS[option]
    of_runs = {"max_kernel_evaluations": settings.DEFAULTS["max_kernel_evaluations"], "solve_threads": None}
    known = ({one.name: one.default for one in signature(getattr(bp, kind)).parameters.values()} for kind in KINDS)
    default = next(own[name] for own in (of_runs, *known) if name in own)
    named = re.search(r"(\S+) \(default[);]|\(default: ([^;)]+)", parameter.help)
    if default is None or isinstance(default, bool):
        assert named is None or named[1] in ("all", "gamma")
    elif named is not None:
        word = {"error": "raise"}.get(named[1], named[1]) or named[2]
        assert (float(word) if isinstance(default, int | float) else word) == default
    else:
        assert option == "kernel"


def test_the_plan_is_reported_once_and_the_reads_of_an_iteration_are_numbered(flat: Path) -> None:
    result = run("fit", flat, "-k", 5, "--solver", "krylov")
    assert result.stdout.count("block Krylov") == 1
    assert "block Krylov" not in result.stderr
    assert "bigpca: product: 400 rows" in result.stderr
    assert "bigpca: product 2: 400 rows" in result.stderr
