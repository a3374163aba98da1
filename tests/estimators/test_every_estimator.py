"""What holds of every estimator, whichever solver it takes: one table of fits times the claims."""

import json
import pickle
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

import bigpca as bp
from bigpca.cli.stores import describe
from bigpca.engine import layout
from bigpca.engine.events import CheckpointEvent, Event, GroupEvent, PassEvent
from bigpca.estimators.kernel import landmarks
from bigpca.estimators.shared.files import StoredModel
from bigpca.estimators.shared.inputs import declared_parameters
from bigpca.passes import side_by_side, sweeps
from tests.estimators.stores import stored, unreadable
from tests.passes.kit import logged, reads_in, write_store
from tests.test_docstrings import entries_of, sections_of

Array = NDArray[Any]
N, D, CHUNK = 240, 6, 40
RNG = np.random.default_rng(0)
CODES = RNG.permutation(np.arange(N) % 3)
X = RNG.standard_normal((N, D)) * 0.6 ** np.arange(D) + 8.0 + RNG.standard_normal((3, D))[CODES]
NEW = X[:37] + 0.1
CLASSES = np.array(["ape", "bee", "cod"])[CODES]
NUMBERS = X[:, :2] ** 2
RBF = {"kernel": "rbf", "gamma": 0.1}
LANDMARKS = {**RBF, "n_landmarks": 25}
METRIC = np.diag(np.arange(1, D + 1.0)) + 0.5
HOLED = np.where(RNG.random((N, D)) < 0.1, np.nan, X)
HOLED[5] = np.nan


class Case(NamedTuple):
    """A fit: its estimator and its labels."""

    make: Callable[[], Any]
    y: Array | None = None


CASES: dict[str, Case] = {
    **{f"PCA {s}": Case(lambda s=s: bp.PCA(2, solver=s)) for s in ("covariance", "dot", "krylov")},
    "PCA of values": Case(
        lambda: bp.PCA(
            2,
            solver="covariance",
            preprocess=[bp.preprocessing.Power(0.7), bp.preprocessing.L2()],
            center=np.full(D, 0.3),
            scale=bp.scales.CosLatitude(np.arange(D)),
            whiten=bp.scales.Whitening(0.3, epsilon=0.01, l2=True),
        )
    ),
    "ApproximatePCA nystrom": Case(lambda: bp.ApproximatePCA(2, bp.sketches.Gaussian(5), scale=True)),
    "ApproximatePCA ritz": Case(lambda: bp.ApproximatePCA(2, bp.sketches.SparseSign(5, nnz=3), approximation="ritz")),
    "RotatedPCA": Case(lambda: bp.RotatedPCA(2, rotation="promax")),
    "CCA": Case(lambda: bp.CCA(2), NUMBERS),
    "PLSSVD": Case(lambda: bp.PLSSVD(2), NUMBERS),
    "PLSRegression": Case(lambda: bp.PLSRegression(2), NUMBERS),
    "PLSRegression of folds": Case(lambda: bp.PLSRegression(bp.rules.CrossValidated(3)), NUMBERS),
    "Ridge": Case(lambda: bp.Ridge(0.5), NUMBERS),
    "FactorAnalysis": Case(lambda: bp.FactorAnalysis(2)),
    "FactorAnalysis rotated": Case(lambda: bp.FactorAnalysis(2, rotation="varimax")),
    "SlowFeatureAnalysis": Case(lambda: bp.SlowFeatureAnalysis(2)),
    "MinimumNoiseFraction": Case(lambda: bp.MinimumNoiseFraction(2)),
    "TICA": Case(lambda: bp.TICA(2, lag=3)),
    "ContrastivePCA": Case(lambda: bp.ContrastivePCA(2, background="bee"), CLASSES),
    "GeneralizedPCA": Case(lambda: bp.GeneralizedPCA(2, metric=METRIC)),
    "CorrespondenceAnalysis": Case(lambda: bp.CorrespondenceAnalysis(2)),
    "SketchTransformer": Case(lambda: bp.SketchTransformer(bp.sketches.Gaussian(3))),
    **{f"KernelPCA {s}": Case(lambda s=s: bp.KernelPCA(2, solver=s, **RBF)) for s in ("dense", "krylov")},
    "KernelPCA features": Case(lambda: bp.KernelPCA(2, kernel="poly", degree=2, solver="features")),
    "ApproximateKernelPCA": Case(lambda: bp.ApproximateKernelPCA(2, **RBF)),
    "NystromKernelPCA": Case(lambda: bp.NystromKernelPCA(2, **LANDMARKS)),
    "SupervisedPCA": Case(lambda: bp.SupervisedPCA(2), CLASSES),
    "SupervisedPCA of numbers": Case(lambda: bp.SupervisedPCA(2, label_kernel="rbf", label_gamma=0.1), NUMBERS),
    "SupervisedRandomProjection": Case(
        lambda: bp.SupervisedRandomProjection(2, n_features=20, label_gamma=0.1), NUMBERS
    ),
    "RoweisDiscriminantAnalysis": Case(lambda: bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=0.5), CLASSES),
    "FisherDiscriminantAnalysis": Case(lambda: bp.FisherDiscriminantAnalysis(2), CLASSES),
    "KernelSupervisedPCA": Case(lambda: bp.KernelSupervisedPCA(2, **LANDMARKS), CLASSES),
    "KernelSupervisedPCA dual": Case(lambda: bp.KernelSupervisedPCA(2, solver="pairs", **RBF), NUMBERS),
    "KernelRoweisDiscriminantAnalysis": Case(lambda: bp.KernelRoweisDiscriminantAnalysis(2, **LANDMARKS), CLASSES),
    "ScoredPCA": Case(lambda: bp.ScoredPCA(2, n_features_to_select=3), CLASSES),
}
FACTORS = ("FactorAnalysis", "FactorAnalysis rotated")
STEPPED = ("SlowFeatureAnalysis", "MinimumNoiseFraction", "TICA")
READING = [name for name in CASES if name != "SketchTransformer"]
GROWING = [
    name for name, case in CASES.items()
    if hasattr(case.make(), "partial_fit") and not any(word in name for word in (" dot", " krylov", " ritz"))
]  # fmt: skip
FILLING = [name for name in CASES if "mean" in CASES[name].make()._traits.accepts and not CASES[name].make().preprocess]
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
every = pytest.mark.parametrize("name", CASES)
reading = pytest.mark.parametrize("name", READING)
growing = pytest.mark.parametrize("name", GROWING)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data as if it were large: 6 groups, 15 panels whose ends lie inside chunks."""
    monkeypatch.setattr(layout, "MIN_GROUP_BYTES", 256)
    monkeypatch.setattr(layout, "MIN_GROUPS", 12)
    monkeypatch.setattr(side_by_side, "PIECE_BYTES", 256)
    monkeypatch.setattr(sweeps, "MIN_TILE", 16)
    monkeypatch.setattr(sweeps, "MIN_PANELS", 16)
    monkeypatch.setattr(landmarks, "CHUNK_BYTES", 10_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("every")
    stored(place, X.astype("f4"), (CHUNK, D))
    return next(place.iterdir())


def fitted(name: str, rows: Any = X, **options: Any) -> Any:
    case = CASES[name]
    return case.make().fit(rows, **options) if case.y is None else case.make().fit(rows, case.y, **options)


known = cache(fitted)  # of X in memory, for tests that do not change it

NAMED = pd.DataFrame(X, columns=list("abcdef"))
GIVEN = NAMED[["b"]] ** 2
INDEFINITE = {"kernel": "sigmoid", "gamma": 0.1}
FITS: list[Callable[[], Any]] = [  # with attributes that fits of the table above have not
    lambda: bp.PCA(2).fit(NAMED, covariates=GIVEN, groups=CODES),
    lambda: bp.PCA(bp.rules.CrossValidated(3)).fit(X),
    lambda: bp.PCA(2).fit(csr_matrix(X)),
    lambda: bp.PCA(2, nan_policy="pairwise").fit(X),
    lambda: bp.PCA(2, scale=bp.scales.Blocks({"first": slice(0, 3), "others": slice(3, 6)})).fit(X),
    lambda: bp.SketchTransformer(bp.sketches.Gaussian(3)).fit(NAMED),
    lambda: bp.KernelPCA(2, solver="krylov", **INDEFINITE).fit(X),
    lambda: bp.ApproximateKernelPCA(2, **INDEFINITE).fit(X),
    lambda: bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=1.0).fit(X, CLASSES),
    lambda: bp.KernelSupervisedPCA(2, label_kernel="rbf", label_gamma=0.1, **LANDMARKS).fit(X, NUMBERS),
    lambda: bp.ScoredPCA(2, n_features_to_select="cv").fit(X, CLASSES),
    *(
        lambda make=CASES[name].make: make().fit(NAMED, NUMBERS, covariates=GIVEN)
        for name in ("CCA", "PLSSVD", "PLSRegression", "Ridge")
    ),
]


@cache
def attributes() -> dict[type, set[str]]:
    """The fitted attributes that each class has after some fit."""
    found: dict[type, set[str]] = {}
    for model in [*map(known, CASES), *(make() for make in FITS)]:
        names = {*dir(model), *model._traits.result.names()}
        found.setdefault(type(model), set()).update(name for name in names if hasattr(model, name))
    return found


def documented(one: type) -> dict[str, str]:
    """The entries of the fitted attributes that a docstring lists."""
    entries = entries_of(sections_of(one).get("Attributes", ""))
    return {name: text for name, text in entries.items() if re.fullmatch(r"[a-z]\w*_", name)}


SOME = re.compile(r"\b([Ii]f|[Oo]nly|Where|Under|Of an?|Of kernel PCA|Of the same fits|Not of|Of ``fit)\b")


@pytest.mark.parametrize(
    "one", dict.fromkeys(type(case.make()) for case in CASES.values()), ids=lambda one: one.__name__
)
def test_every_attribute_that_a_docstring_names_exists_after_some_fit(one: type) -> None:
    has = attributes()[one]
    assert sorted(documented(one).keys() - has) == []
    bases = [base for base in one.__mro__[1:] if base.__module__.startswith("bigpca")]
    of_all = {name for base in bases for name, text in documented(base).items() if not SOME.search(text)}
    assert sorted(of_all - has) == [], "say in the docstring of the family who has them"


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("solver", ["covariance", "krylov", "dot"])
def test_rows_in_memory_are_cut_by_their_shape_and_those_that_are_computed_by_their_chunks(
    solver: str, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).standard_normal((2000, 50))
    stored(tmp_path, rows, (300, 50))
    one, other = (da.from_array(rows, chunks) for chunks in ((300, 50), (70, 20)))
    (place,) = tmp_path.iterdir()
    memory, *same, computed, store = (
        bp.PCA(3, solver=solver).fit(given).components_.tobytes() for given in (rows, one, other, one * 1, place)
    )
    assert same == [memory, memory]
    assert computed == store != memory


@cache
def stored_bits(name: str, store: Path) -> tuple[Any, ...]:
    """Of the fit and the scores of stored rows, on one thread; to be called with ``small_groups``."""
    with dask.config.set(scheduler="sync", num_workers=1):
        model = fitted(name, bp.open(store))
        return bits(model), model.transform(bp.open(store)).compute().tobytes()


def bits(model: Any) -> tuple[Any, ...]:
    """All that a saved model holds, to the last bit."""
    stored = StoredModel.of(model)
    arrays = sorted((name, array.dtype.str, array.shape, array.tobytes()) for name, array in stored.arrays.items())
    return (*arrays, json.dumps(stored.attributes, default=repr, sort_keys=True))


def assert_same_scores(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in READING if "labels" in CASES[name].make()._traits.accepts])
def test_labels_that_rows_were_opened_with_are_those_of_a_fit(name: str) -> None:
    make, y = CASES[name]
    rows = da.from_array(X, chunks=(CHUNK, D))
    given, brought = make().fit(rows, y), make().fit(bp.open(rows, labels=y))
    assert given.plan_.passes == make().plan(bp.open(rows, labels=y)).passes
    assert_same_scores(brought.transform(bp.open(rows, labels=y)), given.transform(rows), 0)


@every
def test_a_class_that_extends_an_estimator_fits_as_that(name: str) -> None:
    model = known(name)
    own = type("Own", (type(model),), {})(**model.get_params(deep=False))
    y = CASES[name].y
    assert_same_scores(own.fit(X, *(() if y is None else (y,))).transform(NEW), model.transform(NEW))
    with pytest.raises(TypeError, match=r"Own is a class of your own, which bigpca\.load would not know\. Pickle"):
        own.save("unused")


@reading
@pytest.mark.usefixtures("small_groups")
def test_threads_give_the_bits_of_one_thread(name: str, store: Path) -> None:
    with dask.config.set(scheduler="threads", num_workers=3):
        model = fitted(name, bp.open(store))
        assert (bits(model), model.transform(bp.open(store)).compute().tobytes()) == stored_bits(name, store)


@reading
@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_worker_processes_give_the_bits_of_one_thread(name: str, store: Path, tmp_path: Path, client: Client) -> None:
    model = fitted(name, bp.open(store))
    written = model.transform(bp.open(store), out=tmp_path / "scores.zarr")
    assert (bits(model), written.compute().tobytes()) == stored_bits(name, store)


@every
def test_computed_lazy_and_written_scores_agree(name: str, store: Path, tmp_path: Path) -> None:
    rows = bp.open(store)
    model, in_memory = fitted(name, rows), X.astype("f4")
    expected, lazy = model.transform(in_memory), model.transform(rows)
    assert isinstance(expected, np.ndarray)
    assert isinstance(lazy, da.Array)
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == (expected.shape, expected.dtype, rows.chunks[0])
    assert_same_scores(lazy, expected, 1e-5)
    written = model.transform(rows, out=tmp_path / "scores.zarr")
    assert np.asarray(written).tobytes() == lazy.compute().tobytes()
    with pytest.raises(bp.errors.OutputExistsError):
        model.transform(rows, out=tmp_path / "scores.zarr")
    assert_same_scores(fitted(name, in_memory).transform(NEW), model.transform(NEW), 1e-5)


@every
def test_preprocessed_rows_are_rows_that_a_plain_estimator_is_given(name: str, tmp_path: Path) -> None:
    case, steps = CASES[name], [bp.preprocessing.Power(0.5), bp.preprocessing.L2()]
    rows, new = (steps[1].apply(steps[0].apply(one, ""), "") for one in (X, NEW))
    model = case.make().set_params(preprocess=steps).fit(da.from_array(X, chunks=(CHUNK, D)), case.y)
    plain = case.make().set_params(preprocess=None).fit(da.from_array(rows, chunks=(CHUNK, D)), case.y)
    assert_same_scores(np.abs(model.transform(NEW)), np.abs(plain.transform(new)))
    written = model.transform(da.from_array(NEW, chunks=(CHUNK, D)), out=tmp_path / "scores.zarr")
    assert_same_scores(written, model.transform(NEW))
    assert model._digest() != plain._digest()
    for method in ("score_samples", "novelty", "predict_proba", "denoise"):
        if hasattr(model, method):
            assert_same_scores(getattr(model, method)(NEW), getattr(plain, method)(new), 1e-5)
    model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    assert again.preprocess == steps
    assert again.transform(NEW).tobytes() == model.transform(NEW).tobytes()
    if name in GROWING:
        y = None if case.y is None else case.y[:37]
        assert_same_scores(
            np.abs(model.partial_fit(NEW, y).transform(NEW)), np.abs(plain.partial_fit(new, y).transform(new)), 1e-5
        )


@every
def test_a_fit_of_rows_with_holes_is_that_of_rows_with_the_means_of_their_columns(name: str, tmp_path: Path) -> None:
    case, rows = CASES[name], da.from_array(HOLED, chunks=(CHUNK, D)) + 0
    model = case.make().set_params(nan_policy="mean")
    if not name.startswith("PCA"):
        with pytest.raises(ValueError, match='nan_policy = "pairwise" is for PCA, not for'):
            case.make().set_params(nan_policy="pairwise").fit(unreadable(N, D), case.y)
    if name not in FILLING:
        with pytest.raises(ValueError, match='nan_policy = "mean" is'):
            model.fit(unreadable(N, D), case.y)
        return
    means = np.nanmean(HOLED, axis=0)
    plain = case.make().fit(da.from_array(np.where(np.isnan(HOLED), means, HOLED), chunks=(CHUNK, D)) + 0)
    planned = model.plan(rows)
    model.fit(rows)
    np.testing.assert_allclose(model.mean_, plain.mean_, rtol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-6)
    assert_same_scores(np.abs(model.transform(NEW)), np.abs(plain.transform(NEW)), 1e-5)
    assert planned.passes == plain.plan(rows).passes + 1
    assert model.provenance_.reads == plain.provenance_.reads + 1
    model.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").transform(HOLED).tobytes() == model.transform(HOLED).tobytes()
    with pytest.raises(bp.errors.NonFiniteError):
        model.fit(np.where(np.isnan(HOLED), np.inf, HOLED))


@pytest.mark.parametrize("name", ["PCA covariance", "NystromKernelPCA", "SupervisedPCA"])
def test_scores_are_stored_in_another_dtype_where_it_holds_them(name: str, store: Path, tmp_path: Path) -> None:
    model = fitted(name)
    half = model.transform(X).astype("f2")
    assert np.array_equal(model.transform(X, dtype="float16"), half)
    found = model.transform(X, out=tmp_path / "scores.zarr", dtype=np.float16)
    assert found.dtype == "f2"
    assert np.array_equal(found.compute(), half)
    single = model.transform(bp.open(store), dtype="f8").compute()
    assert np.array_equal(single, model.transform(bp.open(store)).compute().astype("f8"))
    for bad in ("int8", "int16", 3, "real"):
        with pytest.raises(ValueError, match="stored as float16, float32 or float64"):
            model.transform(X, dtype=bad)
    if name == "PCA covariance":
        with pytest.raises(ValueError, match="does not fit dtype float16"):
            model.transform(X * 1e6, dtype="float16")


@every
def test_fit_transform_is_fit_and_transform(name: str) -> None:
    case = CASES[name]
    found = case.make().fit_transform(X, case.y)
    if isinstance(found, tuple):  # of both sides
        found, other = found
        assert_same_scores(other, known(name).transform_y(case.y), 1e-9)
    assert_same_scores(found, known(name).transform(X), 1e-9)


@every
def test_a_model_comes_back_from_a_file_and_a_pickle_and_a_clone_is_unfitted(name: str, tmp_path: Path) -> None:
    model = known(name)
    model.save(tmp_path / "model")
    for again in (bp.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model)
        assert str(again.get_params()) == str(model.get_params())
        assert bits(again) == bits(model)
        assert again.transform(NEW).tobytes() == model.transform(NEW).tobytes()
        public = {
            a for a in dir(model) if a.endswith("_") and not a.startswith("_") and a != "plan_" and hasattr(model, a)
        }
        assert not {a for a in public if not hasattr(again, a)}
    unfitted = clone(model)
    assert str(unfitted.get_params()) == str(model.get_params())
    with pytest.raises(NotFittedError):
        unfitted.transform(NEW)
    with pytest.raises(NotFittedError):
        unfitted.save(tmp_path / "unfitted")
    assert not (tmp_path / "unfitted").exists()


CHANGED = {
    "n_components": 100, "center": False, "scale": True, "kernel": "linear", "gamma": 7.0, "alpha": [1.0, 2.0],
    "n_landmarks": 2, "sketch": bp.sketches.Gaussian(3), "solver": "auto", "tol": 0.5, "nan_policy": "omit", "r2": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_whose_parameters_were_changed_is_stored_as_it_was_fitted(name: str, tmp_path: Path) -> None:
    model = fitted(name)
    before, scores = bits(model), model.transform(NEW).tobytes()
    model.save(tmp_path / "before")
    model.set_params(**{name: value for name, value in CHANGED.items() if name in model.get_params()})
    model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    assert str(again.get_params()) == str(model.get_params())
    assert (bits(again)[:-1], again.transform(NEW).tobytes()) == (before[:-1], scores)  # the last are attributes
    assert describe(bp.load(tmp_path / "model")) == describe(bp.load(tmp_path / "before"))


@reading
@pytest.mark.usefixtures("small_groups")
def test_a_stopped_fit_resumes_to_the_same_bits(name: str, store: Path, tmp_path: Path) -> None:
    events: list[Event] = []

    def stop(event: Event) -> None:
        events.append(event)
        if sum(isinstance(one, CheckpointEvent) for one in events) == 5:
            raise KeyboardInterrupt

    with dask.config.set(scheduler="sync"):
        with pytest.raises(KeyboardInterrupt):
            fitted(name, bp.open(store), checkpoint=tmp_path / "c", progress=stop)
        events.clear()
        again = fitted(name, bp.open(store), checkpoint=tmp_path / "c", progress=events.append)
        assert max(event.groups_resumed for event in events if isinstance(event, PassEvent)) > 0
        assert bits(again) == stored_bits(name, store)[0]
        with pytest.raises(bp.errors.CheckpointError):
            fitted(name, stored(tmp_path, X, (CHUNK, D)), checkpoint=tmp_path / "c")
        if (y := CASES[name].y) is not None:
            with pytest.raises(bp.errors.CheckpointError):
                CASES[name].make().fit(bp.open(store), y[::-1].copy(), checkpoint=tmp_path / "c")


MANY = np.random.default_rng(0).standard_normal((640, 4)).astype("f4")  # enough for a start from landmarks
PARTS: dict[str, tuple[Any, Array, Array | None]] = {  # fits of several reads of other kinds than those of the table
    "means, then moments": (bp.PCA(2, nan_policy="mean"), HOLED, None),
    "means, then pairs": (bp.PCA(2, nan_policy="pairwise"), HOLED, None),
    "scores, folds, fit": (bp.ScoredPCA(n_features_to_select="cv", cv=2), X, CLASSES),
    "landmarks, then sweeps": (bp.KernelPCA(2, kernel="laplacian", solver="krylov", tol=1e-2), MANY, None),
}  # fmt: skip


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("part", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("name", PARTS)
def test_a_fit_stopped_in_any_of_its_parts_resumes_to_the_same_bits(name: str, part: float, tmp_path: Path) -> None:
    model, rows, y = PARTS[name]
    given, most, written = stored(tmp_path, rows, (CHUNK, rows.shape[1])), 10**6, list[Event]()

    def note(event: Event) -> None:
        written.extend([event] * isinstance(event, CheckpointEvent))
        if len(written) == most:
            raise KeyboardInterrupt

    def run(place: str) -> tuple[Any, ...]:
        written.clear()
        return bits(clone(model).fit(given, y, checkpoint=tmp_path / place, progress=note))

    with dask.config.set(scheduler="sync"):
        whole = run("whole")
        total = len(written)
        most = max(1, int(part * total))
        with pytest.raises(KeyboardInterrupt):
            run("c")
        most, before = 10**6, most
        assert run("c") == whole
        assert len(written) <= total - before + 1


@pytest.mark.parametrize("covariates", [False, True])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", ["KernelPCA by features", "ScoredPCA"])
def test_what_is_made_of_rows_in_memory_is_found_again(
    name: str, held: bool, covariates: bool, store: Path, tmp_path: Path
) -> None:
    model = bp.ScoredPCA(2, n_features_to_select=3)
    if name != "ScoredPCA":
        model = bp.KernelPCA(2, kernel="poly", degree=2, solver="features")
    beside = {"y": np.arange(len(X)) % 3} if name == "ScoredPCA" else {}
    beside |= {"covariates": X[:, :2] ** 2} if covariates else {}
    events: list[Event] = []
    first = bits(clone(model).fit(X.copy() if held else store, **beside, checkpoint=tmp_path / "c"))
    again = clone(model).fit(X.copy() if held else store, **beside, checkpoint=tmp_path / "c", progress=events.append)
    assert not any(isinstance(event, GroupEvent) for event in events)
    assert bits(again) == first


SPARSE = [name for name, case in CASES.items() if get_tags(case.make()).input_tags.sparse]


def few_values() -> csr_matrix:
    """Rows of which about half the values are zero."""
    return csr_matrix(np.where(X > 2, X, 0))


@pytest.mark.filterwarnings("ignore:.*components:UserWarning")
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.usefixtures("small_groups")
def test_sparse_rows_are_rows_like_others(name: str, tmp_path: Path) -> None:
    rows = few_values()
    dense, lazy = fitted(name, rows.toarray()), da.from_array(rows, chunks=(CHUNK, D))
    expected = np.abs(dense.transform(rows.toarray()))
    found = []
    for scheduler, workers in (("sync", 1), ("threads", 3)):
        with dask.config.set(scheduler=scheduler, num_workers=workers):
            model = fitted(name, lazy)
            found.append((bits(model), np.asarray(model.transform(lazy)).tobytes()))
    assert found[0] == found[1]
    scores = model.transform(rows)
    assert isinstance(scores, np.ndarray)
    assert_same_scores(np.abs(scores), expected)
    assert_same_scores(np.abs(fitted(name, rows).transform(rows)), expected)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(bp.load(tmp_path / "model").transform(rows), scores)
    written = model.transform(lazy, out=tmp_path / "scores.zarr")
    assert np.asarray(written).tobytes() == found[0][1]
    assert bits(fitted(name, rows.tocsc())) == bits(fitted(name, rows))
    case, steps = (
        CASES[name],
        [bp.preprocessing.Power(0.5), bp.preprocessing.L2("keep")],
    )  # which leave zeros as they are
    scores = [
        np.asarray(case.make().set_params(preprocess=steps).fit(one, case.y).transform(one))
        for one in (lazy, rows, rows.toarray())
    ]
    for found in scores[:2]:
        assert_same_scores(np.abs(found), np.abs(scores[2]))


@pytest.mark.parametrize("name", ["PCA covariance", "PCA krylov", "SupervisedPCA"])
@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_worker_processes_give_sparse_rows_the_bits_of_one_thread(name: str, tmp_path: Path, client: Client) -> None:
    zarr.save_array(tmp_path / "rows.zarr", few_values().toarray(), zarr_format=3)
    rows = bp.open(tmp_path / "rows.zarr").rechunk((CHUNK, -1)).map_blocks(csr_matrix, meta=few_values()[:0])
    model = fitted(name, rows)
    with dask.config.set(scheduler="sync"):
        assert bits(model) == bits(fitted(name, rows))


@pytest.mark.parametrize("name", [name for name in SPARSE if name in READING])
@pytest.mark.usefixtures("small_groups")
def test_a_stopped_fit_on_sparse_rows_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    rows, events = bp.open(few_values()).rechunk((CHUNK, -1)), 0

    def stop(event: Event) -> None:
        nonlocal events
        events += isinstance(event, CheckpointEvent)
        if events == 5:
            raise KeyboardInterrupt

    with dask.config.set(scheduler="sync"):
        with pytest.raises(KeyboardInterrupt):
            fitted(name, rows, checkpoint=tmp_path / "c", progress=stop)
        assert bits(fitted(name, rows, checkpoint=tmp_path / "c")) == bits(fitted(name, rows))


REJECTED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no component": ({"n_components": 0}, ValueError, "n_components = 0"),
    "no number": ({"n_components": True}, (TypeError, ValueError), "n_components = True"),
    "policy": ({"nan_policy": "drop"}, ValueError, "nan_policy = 'drop'"),
    "memory": ({"memory_limit": "1 KiB"}, bp.errors.MemoryBudgetError, "memory_limit = 1"),
}


@reading
@pytest.mark.parametrize("wrong", REJECTED)
def test_what_cannot_be_is_rejected_unread(name: str, wrong: str) -> None:
    parameters, error, message = REJECTED[wrong]
    model = CASES[name].make()
    if not parameters.keys() <= model.get_params().keys():
        error, message = ValueError, "Invalid parameter 'n_components' for estimator"
    with pytest.raises(error, match=message):
        model.set_params(**parameters).fit(unreadable(N, D), CASES[name].y)


# Those that fit rows without variance; all others say what is missing.
CONSTANT = [
    name for name in CASES
    if "values" not in name and name.split()[0] in (
        "PCA", "ApproximatePCA", "SketchTransformer", "KernelPCA", "ApproximateKernelPCA", "NystromKernelPCA",
        "RoweisDiscriminantAnalysis", "ScoredPCA", "ContrastivePCA", "GeneralizedPCA",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", CONSTANT)
@pytest.mark.parametrize("value", [0.0, 1e4 + 0.1])
def test_constant_rows_have_no_variance_and_scores_of_zero(name: str, value: float) -> None:
    model = fitted(name, np.full((N, D), value))
    scores = model.transform(np.full((3, D), value))
    for found in ("explained_variance_", "eigenvalues_"):
        if hasattr(model, found):
            np.testing.assert_allclose(getattr(model, found), 0, atol=1e-12)
    if name != "SketchTransformer":
        np.testing.assert_allclose(scores, 0, atol=1e-9)


@every
def test_a_call_that_fails_changes_nothing(name: str) -> None:
    """Neither an attribute, by identity, nor a saved bit: rows that are not finite, of another width, other labels."""
    model, y = fitted(name), CASES[name].y
    holed = X.copy()
    holed[3, 1] = np.inf
    wrong: list[tuple[Any, Any, Any]] = [(holed, y, bp.errors.NonFiniteError)]
    if y is not None:
        wrong += [(X, y[:5], ValueError), (X, None, (TypeError, ValueError))]
    calls = [(model.fit, *one) for one in wrong]
    if name not in CONSTANT:
        calls.append((model.fit, np.zeros_like(X), y, ValueError))
    if name in GROWING:
        calls += [(model.partial_fit, *one) for one in (*wrong, (unreadable(N, 3), y, ValueError))]
        if y is CLASSES:
            calls.append((model.partial_fit, X, CODES, TypeError))
    saved, before = bits(model), dict(vars(model))
    for call, rows, labels, error in calls:
        with pytest.raises(error):
            call(rows, labels)
        assert vars(model).keys() == before.keys()
        assert all(value is before[attribute] for attribute, value in vars(model).items())
        assert bits(model) == saved


PREFIXES = {
    "PCA": "pca", "ApproximatePCA": "pca", "RotatedPCA": "rotated", "SketchTransformer": "sketch",
    "ScoredPCA": "scored", "KernelPCA": "kpca", "NystromKernelPCA": "kpca", "ApproximateKernelPCA": "kpca",
    "SupervisedPCA": "spca", "KernelSupervisedPCA": "kspca", "SupervisedRandomProjection": "srp",
    "FisherDiscriminantAnalysis": "fisher", "RoweisDiscriminantAnalysis": "roweis",
    "KernelRoweisDiscriminantAnalysis": "kroweis", "CCA": "cca", "PLSSVD": "plssvd", "Ridge": "ridge",
    "SlowFeatureAnalysis": "sfa", "MinimumNoiseFraction": "mnf", "TICA": "tica", "FactorAnalysis": "factor",
    "PLSRegression": "pls", "ContrastivePCA": "cpca", "GeneralizedPCA": "gpca",
    "CorrespondenceAnalysis": "ca",
}  # fmt: skip


@every
def test_names_go_in_and_come_out(name: str) -> None:
    frame = pd.DataFrame(X, columns=list("abcdef"), index=range(100, 100 + N))
    model = fitted(name, frame)
    assert list(model.feature_names_in_) == list("abcdef")
    scores = model.set_output(transform="pandas").transform(frame)
    prefix = PREFIXES[type(model).__name__]
    assert (
        list(scores.columns) == list(model.get_feature_names_out()) == [f"{prefix}{i}" for i in range(scores.shape[1])]
    )
    assert scores.index[0] == 100
    summary = model.summary()
    assert list(summary.index) == list(scores.columns)
    assert summary.index.name == ("target" if hasattr(model, "cv_scores_") else "component")
    for column, found in (
        ("variance", "explained_variance_"), ("share", "explained_variance_ratio_"), ("correlation", "correlations_"),
        ("share", "squared_covariance_fraction_"), ("alpha", "alpha_"),
    ):  # fmt: skip
        if hasattr(model, found):
            np.testing.assert_array_equal(summary[column], getattr(model, found))
    assert len(summary.columns) or name in ("SketchTransformer", "SupervisedRandomProjection")
    if "lower" in summary:
        assert (summary["lower"] <= summary.iloc[:, 0] * (1 + 1e-12)).all()
        assert (summary.iloc[:, 0] <= summary["upper"] * (1 + 1e-12)).all()
    framed = model.to_frame(np.asarray(scores))
    np.testing.assert_array_equal(framed, scores)
    assert list(framed.columns) == list(scores.columns)
    if hasattr(model, "loadings_"):
        assert (list(model.to_frame().index), model.to_frame().shape) == (list("abcdef"), model.loadings_.shape)
    else:
        with pytest.raises(ValueError, match=r"has no loadings_. Pass scores: to_frame"):
            model.to_frame()
    with pytest.raises(ValueError, match="columns"):
        model.to_frame(np.ones((2, scores.shape[1] + 1)))
    assert "rows read" in repr(model.provenance_)
    assert "<td" in model.provenance_._repr_html_()
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[list("bacdef")])


@every
def test_samples_of_a_labelled_field_with_land_are_rows_and_scores_have_their_labels(name: str, tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    values = np.insert(X, [1, 4], np.nan, axis=1).reshape(N // 3, 3, 4, 2)
    coords = {"time": np.arange(N // 3) + 0.5, "lat": [50.0, 40.0, 30.0, 20.0]}
    field = xr.DataArray(values, dims=("time", "member", "lat", "lon"), coords=coords).transpose("lat", ...)
    model = fitted(name, bp.open(field.transpose(..., "lat", "lon"), sample_dims=("time", "member")))
    expected = known(name)
    assert model.n_features_in_ == D
    scores = model.transform(field.chunk(time=7))
    assert scores.dims == ("time", "member", "component")
    np.testing.assert_array_equal(scores.time, coords["time"])
    assert_same_scores(np.abs(np.asarray(scores).reshape(N, -1)), np.abs(expected.transform(X)), 1e-5)
    model.save(tmp_path / "model")
    again = bp.load(tmp_path / "model")
    xr.testing.assert_identical(again.transform(field), model.transform(field))
    if hasattr(model, "to_xarray"):
        sides = [one if isinstance(one, tuple) else (one,) for one in (model.to_xarray(), again.to_xarray())]
        assert np.argwhere(np.isnan(next(iter(sides[0][0].values()))[0].values)).tolist() == [[0, 1], [2, 1]]
        for one, other in zip(*sides, strict=True):
            xr.testing.assert_identical(one, other)
    with pytest.raises(ValueError, match="the coordinate 'lat' of X is"):
        again.transform(field.isel(lat=[1, 0, 2, 3]))
    with pytest.raises(bp.errors.NonFiniteError, match="2 columns hold NaN in some rows and values in others"):
        np.asarray(model.transform(field.fillna(1.0)))


@every
def test_empty_and_one_row_chunks_are_rows_like_others(name: str) -> None:
    rows = da.from_array(X, chunks=((0, 1, 1, 0, N - 5, 2, 0, 1), (D,)))
    model = fitted(name, rows)
    scores = model.transform(rows)
    assert scores.chunks[0] == rows.chunks[0]
    assert_same_scores(np.abs(scores), np.abs(known(name).transform(X)))


@growing
def test_batches_in_any_order_give_the_model_of_one_fit(name: str, tmp_path: Path) -> None:
    y = CASES[name].y
    batches = [slice(0, 150), slice(150, 151), slice(151, N)]
    first = CASES[name].make().fit(X[:150], None if y is None else y[:150])
    first.save(tmp_path / "model")
    found = []
    for order in permutations(batches[1:]):
        model = bp.load(tmp_path / "model")
        for batch in order:
            model.partial_fit(X[batch], None if y is None else y[batch])
        assert getattr(model, "n_samples_", N) == N
        found.append(np.abs(model.transform(NEW)))
    assert_same_scores(found[0], found[1], 1e-8)
    chosen_by_the_first = {"n_landmarks", "n_features_to_select"} & set(first.get_params())
    # A batch is a trajectory of its own: no pair of rows crosses its border.
    if name not in STEPPED and not chosen_by_the_first and getattr(first, "label_kernel", "") != "rbf":
        assert_same_scores(found[0], np.abs(known(name).transform(NEW)))


MERGING = [  # without models whose landmarks, selected features or label features are those of their own rows
    name for name in GROWING
    if not {"n_landmarks", "n_features_to_select"} & set(CASES[name].make().get_params())
    and getattr(CASES[name].make(), "label_kernel", "") != "rbf"
]  # fmt: skip


@pytest.mark.parametrize("name", MERGING)
def test_merged_models_in_any_order_are_the_model_of_all_rows(name: str, tmp_path: Path) -> None:
    case, parts = CASES[name], (slice(0, 150), slice(150, 170), slice(170, N))
    models = [case.make().fit(X[own], None if case.y is None else case.y[own]) for own in parts]
    # A part is a trajectory of its own: no pair of rows crosses its border.
    trajectories = {"groups": np.repeat(range(3), [150, 20, N - 170])} if name in STEPPED else {}
    expected = np.abs(fitted(name, **trajectories).transform(NEW))
    saved = [bits(model) for model in models]
    for first, second, third in permutations(models):
        merged = bp.merge(bp.merge(first, second), third)
        assert getattr(merged, "n_samples_", N) == N
        # The iteration of FactorAnalysis ends where the likelihood hardly changes.
        assert_same_scores(np.abs(merged.transform(NEW)), expected, 1e-4 if name in FACTORS else 1e-6)
    assert [bits(model) for model in models] == saved
    merged.save(tmp_path / "model")
    assert bits(bp.load(tmp_path / "model")) == bits(merged)


# Rows times 2^j. A fit has the given parameters at each j, the powers of 2^j below, and those of its own.
SCALES = {"f4": (-100, -70, 60, 100), "f8": (-490, -140, 490)}  # sums of float32 rows are in float64
POWERS = {
    name: power
    for power, names in {
        -2: "get_precision",
        -1: "landmark_transform_",
        0: "bounds_confidence_ captured_variance_bounds_ class_counts_ components_ containment_bound converged_ "
        "decision_function discriminants_ eigenvectors_ explained_variance_ratio_ feature_correlations hotelling_t2 "
        "kernel_evaluations_ landmark_indices_ mahalanobis missed_label_trace_ n_components_ n_effective_ "
        "n_features_in_ n_omitted_ n_passes_ n_samples_ n_unlabelled_ negative_mass_ phi_ predict predict_proba rank_ "
        "rotation_matrix_ roweis_criterion_ scores_ seed_ selected_ shrinkage_factors_ subspace_error_bounds_ "
        "sum_weights_ supervision_level_ t2_limit trace_error_ contributions(t2) outliers",
        1: "class_means_ contributions(spe) inverse_transform landmarks_ loadings_ mean_ remove_components scale_ "
        "singular_values_ transform denoise",
        2: "eigenvalue_bounds_ eigenvalues_ explained_variance_ get_covariance intercept_ noise_variance_ novelty "
        "residuals_ spe spe_limit total_variance_",
    }.items()
    for name in names.split()
}
RATIO = {"components_": -1, "coef_": -1, "transform": 0, "eigenvalues_": 0, "intercept_": 0}  # S_W is the unit
KEPT = ("landmarks_", "denoise", "inverse_transform", "mean_", "scale_", "remove_components")
NO_UNIT = {name: 0 for name in POWERS if name not in KEPT}  # kernels with a width, and scaled columns
PAIRED = {  # Y has its own unit
    **dict.fromkeys(("n_targets_", "y_mean_", "y_std_", "correlations_", "ranks_", "squared_covariance_fraction_"), 0),
    **dict.fromkeys(("singular_values_", "transform", "intercept_", "cv_scores_"), 0),
    **{f"{side}_{what}_": 0 for side in "xy" for what in ("weights", "rotations", "loadings")},
    **{"x_mean_": 1, "x_std_": 1, "coef_": -1, "alpha_": 2},
}
OWN = {
    "CCA": PAIRED, "PLSSVD": PAIRED,
    **dict.fromkeys(
        ("PLSRegression", "PLSRegression of folds"), PAIRED | dict.fromkeys(("r2_", "vip_", "cv_errors_"), 0)
    ),
    "FisherDiscriminantAnalysis": RATIO, "ApproximatePCA nystrom": NO_UNIT,
    "RotatedPCA": {"components_": 1, "transform": 0},
    **{name: {"components_": 1, "transform": 0, "n_iter_": 0} for name in FACTORS},
    "ContrastivePCA": {"patterns_": 0}, "GeneralizedPCA": {"patterns_": 0},
    "CorrespondenceAnalysis": dict.fromkeys(
        ("eigenvalues_", "mean_", "patterns_", "transform", "inverse_transform", "total_inertia_",
         "explained_inertia_ratio_", "column_coordinates_"), 0
    ),
    **dict.fromkeys(STEPPED, RATIO | {"patterns_": 1} | dict.fromkeys(
        ("noise_fractions_", "timescales_", "implied_timescales_", "lags_"), 0
    )),
}  # fmt: skip
LINEAR: dict[str, Any] = {"kernel": "linear"}
SMALL = slice(0, 48)
# The exceptions, by name, which the table leaves out: what adds a number without a unit, or with a unit of its own.
# - the power and epsilon of "PCA of values"; gamma and coef0 that are fixed
# - 0 < r2 < 1 without normalize: ``r2 S_W + (1 - r2) I``, as the paper prints it; with normalize it is in the table
# - regularization of R2, and alpha of inverse_transform of kernel PCA: absolute multiples of I, as in scikit-learn
# - sampling="column-norm" where K_ij^2 leaves float64: rejected with a message, as for indefinite kernels
UNITS: dict[str, tuple[Callable[[int], Any], Any, Mapping[str, float]]] = {
    **{
        name: (lambda j, make=case.make: make(), case.y, OWN.get(name, {}))
        for name, case in CASES.items()
        if "Kernel" not in name and "Roweis" not in name and name not in ("PCA of values", "Ridge")
    },
    **{
        name: (
            lambda j, make=case.make: (m := make()).set_params(gamma=float(np.ldexp(m.gamma or 0.1, -2 * j))), case.y,
            NO_UNIT,
        )
        for name, case in CASES.items() if "Kernel" in name
    },
    "RoweisDiscriminantAnalysis": (lambda j: bp.RoweisDiscriminantAnalysis(2, r1=0.5, r2=1.0), CLASSES, RATIO),
    "RoweisDiscriminantAnalysis normalized": (
        lambda j: bp.RoweisDiscriminantAnalysis(2, r1=0.3, r2=0.5, normalize=True), CLASSES,
        {"components_": -0.5, "transform": 0.5, "eigenvalues_": 0},
    ),
    "Ridge": (lambda j: bp.Ridge(float(np.ldexp(0.5, 2 * j))), NUMBERS, PAIRED),
    "ApproximatePCA tutorial": (
        lambda j: bp.ApproximatePCA(2, bp.sketches.Gaussian(5), approximation="tutorial"), None, {}
    ),
    **{
        f"KernelPCA linear {s}": (lambda j, s=s: bp.KernelPCA(2, solver=s, **LINEAR), None, {})
        for s in ("dense", "krylov", "features")
    },
    "KernelPCA cosine": (lambda j: bp.KernelPCA(2, kernel="cosine", solver="krylov"), None, NO_UNIT),
    **{
        f"ApproximateKernelPCA linear {core}": (
            lambda j, core=core: bp.ApproximateKernelPCA(2, approximation=core, **LINEAR), None, {}
        )
        for core in ("nystrom", "tutorial")
    },
    "NystromKernelPCA linear": (lambda j: bp.NystromKernelPCA(2, n_landmarks=9, **LINEAR), None, {}),
    "KernelSupervisedPCA linear": (lambda j: bp.KernelSupervisedPCA(2, n_landmarks=9, **LINEAR), CLASSES, {}),
    "KernelSupervisedPCA linear dual": (lambda j: bp.KernelSupervisedPCA(2, solver="pairs", **LINEAR), NUMBERS, {}),
}  # fmt: skip


def numbers_of(model: Any, rows: Array) -> dict[str, Array]:
    """Return every fitted number and public statistic of a model."""
    found = {a: getattr(model, a, None) for a in dir(model) if a.endswith("_") and not a.startswith("_")}
    found["transform"] = model.transform(rows)
    calls: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("hotelling_t2", "spe", "novelty", "denoise", "decision_function", "predict_proba"), (rows,)),
        "inverse_transform": (found["transform"],), "remove_components": (rows, [0]), "containment_bound": (1, 2),
        "get_covariance": (), "t2_limit": (0.9, rows),
    }  # fmt: skip
    found |= {name: getattr(model, name)(*given) for name, given in calls.items() if hasattr(model, name)}
    if hasattr(model, "spe"):
        found |= {f"contributions({of})": model.contributions(rows, of) for of in ("t2", "spe")}
        kept = getattr(model, "_state", None) is not None and isinstance(model, bp.PCA)
        limits = ("empirical", *(("box",) if kept else ()))
        found["spe_limit"] = [model.spe_limit(0.9, rows, limit=limit) for limit in limits]
        found["mahalanobis"], outliers = model.mahalanobis(rows), model.top_outliers(rows, 3)
        found["outliers"], found["get_precision"] = [*outliers.rows, *outliers.values], model.get_precision()
        found["score_samples"] = model.score_samples(rows)
    arrays = {name: np.asarray(value) for name, value in found.items() if not callable(value)}
    return {name: array.astype(float) for name, array in arrays.items() if array.size and array.dtype.kind in "biuf"}


@pytest.mark.parametrize("name", UNITS)
def test_numbers_have_the_power_of_the_unit_of_the_rows_that_the_table_states(name: str) -> None:
    make, y, own = UNITS[name]
    powers = POWERS | own
    labels = () if y is None else (y[SMALL],)
    with dask.config.set(scheduler="sync"):
        for dtype, exponents in SCALES.items():
            rows = X[SMALL].astype(dtype)
            expected = numbers_of(make(0).fit(rows, *labels), rows)
            for j in exponents:
                scaled = np.ldexp(rows, j)
                found = numbers_of(make(j).fit(scaled, *labels), scaled)
                assert found.keys() == expected.keys()
                for what, number in expected.items():
                    if what == "solve_error_":  # rounding alone: an estimate without a unit, of no more than that
                        assert max(found[what], number) < 1e-9 if dtype == "f8" else found[what] < 1e-2
                        continue
                    if what == "loglike_":
                        unit = j * len(rows) * D * np.log(2)
                        np.testing.assert_allclose(found[what] + unit, number, rtol=1e-9, atol=1e-12 * abs(unit))
                        continue
                    if what == "score_samples":
                        logarithm = j * powers["transform"] * D * np.log(2)  # of the unit of a density
                        np.testing.assert_allclose(found[what] + logarithm, number, rtol=1e-5, err_msg=what)
                        continue
                    close = (1e-12 if dtype == "f8" else 1e-5) * np.abs(number).max()
                    same = np.ldexp(found[what], -round(j * powers[what]))  # every j is even
                    np.testing.assert_allclose(same, number, rtol=0, atol=close, err_msg=f"{what} of {dtype} 2^{j}")


KINDS = {type(case.make()).__name__: case for case in reversed(CASES.values())}  # the first case of each class


@pytest.mark.parametrize("value", [object(), "nonsense", -7, np.nan], ids=["object", "word", "negative", "nan"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_cannot_be_is_named_before_any_read(kind: str, value: Any) -> None:
    case = KINDS[kind]
    for name in case.make().get_params(deep=False).keys() - ({"coef0"} if value == -7 else set()):
        with pytest.raises((TypeError, ValueError), match=rf"\b{name} (= |is|has)"):
            case.make().set_params(**{name: value}).fit(unreadable(N, D), case.y)


def test_no_class_declares_for_its_bases_what_they_do_not_know() -> None:
    """A class that still declares a hook after it has moved elsewhere would be ignored silently."""
    own = {
        kind for case in CASES.values() for kind in type(case.make()).__mro__ if kind.__module__.startswith("bigpca")
    }
    for kind in own:
        known = {name for base in kind.__mro__[1:] for name in (*vars(base), *vars(base).get("__annotations__", {}))}
        known |= set(vars(kind).get("__annotations__", {}))  # declared here, for subclasses
        plain = {name for name, value in vars(kind).items() if not callable(value) and not hasattr(value, "__get__")}
        left = {name for name in plain - known if name[0] == "_" and name[:2] != "__"}
        assert not left, f"{kind.__name__} declares {left}, which no base reads"


OTHERS: dict[str, Any] = {
    "n_components": 1,
    "tol": 0.1,
    "max_iter": 20,
    "whiten": True,
    "regularization": 0.3,
    "robust": True,
    "normalize": True,
    "r1": 0.2,
    "r2": 0.9,
    "fit_intercept": False,
    "alpha": 3.0,
    "background": "ape",
    "lag": 2,
    "width": 5,
    "n_features_to_select": 2,
    "metric": np.eye(D),
    "label_kernel": "linear",
    "label_gamma": 0.7,
    "n_features": 5,
    "kernel": "laplacian",
    "gamma": 0.5,
    "degree": 2,
    "coef0": 3,
    "n_landmarks": 12,
    "sampling": "uniform",
    "preprocess_y": "l2",
    "sketch": bp.sketches.Gaussian(4),
}
OTHER_PARAMETERS = [
    (name, one)
    for name in GROWING
    for one, other in OTHERS.items()
    if not np.array_equal(vars(CASES[name].make()).get(one, other), other)
    and (name, one) != ("PLSRegression of folds", "n_components")  # whose folds a number would not keep: rejected
]


@growing
def test_a_parameter_that_no_fit_would_take_adds_no_rows(name: str) -> None:
    case, half = CASES[name], N // 2
    first, rest = ((X[cut], None if case.y is None else case.y[cut]) for cut in (slice(half), slice(half, N)))
    model = case.make().fit(*first)
    expected = np.asarray(model.transform(NEW))
    for one in {"nan_policy", "n_components"} & set(model.get_params()):
        right = model.get_params()[one]
        with pytest.raises((TypeError, ValueError), match=f"{one} = 'bogus'|a state for each fold"):
            model.set_params(**{one: "bogus"}).partial_fit(*rest)
        np.testing.assert_array_equal(model.set_params(**{one: right}).transform(NEW), expected)


@pytest.mark.parametrize(("name", "parameter"), OTHER_PARAMETERS)
def test_a_parameter_that_is_changed_after_a_fit_acts_when_it_says_so(name: str, parameter: str) -> None:
    """On sums: other rows are rejected. On the solve: it is as if it had been so. On scores: no fit is needed."""
    case, other, half = CASES[name], {parameter: OTHERS[parameter]}, N // 2
    first, rest = ((X[cut], None if case.y is None else case.y[cut]) for cut in (slice(half), slice(half, N)))

    def scores(before: dict[str, Any], between: dict[str, Any], after: dict[str, Any]) -> Array:
        model = case.make().set_params(**before).fit(*first).set_params(**between).partial_fit(*rest)
        return np.asarray(model.set_params(**after).transform(NEW))

    acts = declared_parameters(type(case.make()))[parameter].acts
    if acts == "sums":
        with pytest.raises(ValueError, match=rf"{parameter} was changed after the fit"):
            scores({}, other, {})
        return
    expected = scores(other, {}, {})
    found = scores({}, {}, other) if acts == "scores" else scores({}, other, {})
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-6, atol=1e-8 * np.abs(expected).max())


# Which rows count is decided before anything looks at values: those that do not may hold anything, whatever leaves them
# out. Whole chunks are left out, at the start and within, and single rows.
ABSENT = (np.arange(N) % 3 == 0) | (np.arange(N) < 45) | (np.arange(N) // CHUNK == 3)
RUBBISH = np.tile([[1e9], [-1e10], [1e300], [np.inf], [np.nan]], (N // 5, D)) * np.linspace(1, 2, D)
LEAVING = CASES | {
    "PCA krylov scaled": Case(lambda: bp.PCA(2, solver="krylov", scale=True, tol=1e-12)),
    "PCA standardized": Case(lambda: bp.PCA(2, preprocess=bp.preprocessing.Standardize())),
    "PCA of Pearson residuals": Case(lambda: bp.PCA(2, preprocess=bp.preprocessing.PearsonResiduals())),
    "PCA of blocks": Case(lambda: bp.PCA(2, scale=bp.scales.Blocks(["a", *"b" * (D - 1)]))),
    "PCA krylov of blocks": Case(
        lambda: bp.PCA(2, solver="krylov", scale=bp.scales.Blocks(["a", *"b" * (D - 1)]), tol=1e-12)
    ),
    "PCA of counts of alleles": Case(lambda: bp.PCA(2, scale=bp.scales.Patterson(ploidy=99))),
    "PCA of normalized totals": Case(
        lambda: bp.PCA(2, preprocess=[bp.preprocessing.NormalizeTotal(), bp.preprocessing.Log1p()])
    ),
    "Ridge of folds": Case(lambda: bp.Ridge([0.1, 0.5], cv=3), NUMBERS),
    "SupervisedPCA by the spread of labels": Case(lambda: bp.SupervisedPCA(2, label_kernel="rbf"), NUMBERS),
    "KernelSupervisedPCA of all rows": Case(lambda: bp.KernelSupervisedPCA(2, **RBF), CLASSES),
    **{
        f"KernelSupervisedPCA {way}": Case(
            lambda way=way: bp.KernelSupervisedPCA(2, sampling=way, **LANDMARKS), CLASSES
        )
        for way in ("column-norm", "kmeans")
    },
}
# Drawn or paired by the numbers of rows, or iterated until a step is small: the fit of the other rows alone is another
# one, but that of rows with other rubbish is not.
BY_NUMBER = {name for name, case in LEAVING.items() if getattr(case.make(), "n_landmarks", None)} | {
    *STEPPED, *FACTORS, "PLSRegression of folds", "Ridge of folds"
}  # fmt: skip
LOOKING = {"KernelSupervisedPCA column-norm", "KernelSupervisedPCA kmeans"}
PAIRING = {"PCA dot", "KernelPCA dense", "KernelPCA krylov", "ApproximateKernelPCA", "KernelSupervisedPCA dual"}
UNABLE = {
    "nan_policy": {*PAIRING, *LOOKING, "SupervisedPCA by the spread of labels"},
    "missing_labels": {"KernelSupervisedPCA dual", *LOOKING},
    "sample_weight": {
        "CorrespondenceAnalysis", "KernelPCA features", "KernelRoweisDiscriminantAnalysis", "KernelSupervisedPCA",
        "NystromKernelPCA", "ScoredPCA", "SketchTransformer", *LOOKING, *STEPPED,
        *PAIRING - {"PCA dot"},
    },
}  # fmt: skip
ORDERED = [name for name in LEAVING if not name.startswith(("CCA", "PLS", "Ridge", "PCA dot", "KernelPCA"))]
# Numbers of rows, and what is rounding once an iteration converged, or divided by what is nearly rounding.
OF_ROWS_READ = {
    "landmark_indices_", "landmark_transform_", "n_omitted_", "n_passes_", "n_unlabelled_", "residuals_",
    "subspace_error_bounds_",
}  # fmt: skip


def leaving(name: str, way: str, rubbish: Array, read: str = "fit") -> Any:
    """Fit rows, some of which do not count: at once, in batches, or in two parts."""
    model, y, rows = LEAVING[name].make(), LEAVING[name].y, np.where(ABSENT[:, None], rubbish, np.abs(X))
    beside: dict[str, Any] = {}
    if way == "nan_policy":
        model.set_params(nan_policy="omit")
        rows[ABSENT, np.flatnonzero(ABSENT) % D] = np.nan
    elif way == "missing_labels":
        model.set_params(missing_labels="drop")
    else:
        beside = {"sample_weight": 2.0 * ~ABSENT}
    if y is not None and way != "nan_policy":
        gap = None if y.dtype.kind == "U" else np.nan
        y = np.where(ABSENT[:, None] if y.ndim == 2 else ABSENT, gap, y.astype(object) if gap is None else y)
    if read == "partial_fit":
        for part in (slice(0, 130), slice(130, N)):
            own = {key: values[part] for key, values in beside.items()}
            model.partial_fit(rows[part], None if y is None else y[part], **own)
        return model
    batches = [rows[i : i + 50] for i in range(0, N, 50)]
    return model.fit(bp.from_batches(batches, shape=(N, D)) if read == "batches" else lazy(rows), y, **beside)


def lazy(rows: Array) -> da.Array:
    return da.from_array(rows, chunks=(CHUNK, D)) + 0


def assert_same_numbers(model: Any, truth: Any) -> None:
    getattr(truth, "n_components_", None), getattr(model, "n_components_", None)  # solves what waits
    compared = 0
    for name in dir(truth):
        expected = getattr(truth, name, None) if name[-1] == "_" != name[0] else None
        if name not in OF_ROWS_READ and np.asarray(expected).dtype.kind in "fiu" and hasattr(model, name):
            scale = float(np.abs(expected).max(initial=0)) or 1.0
            np.testing.assert_allclose(getattr(model, name), expected, rtol=0, atol=1e-10 * scale, err_msg=name)
            compared += 1
    assert compared >= 1


@pytest.mark.parametrize("way", UNABLE)
@pytest.mark.parametrize("name", [name for name in LEAVING if name != "ScoredPCA"])  # whose PCA reads other rows, too
@pytest.mark.usefixtures("small_groups")
def test_a_fit_that_leaves_rows_out_is_that_of_the_others_whatever_they_hold(name: str, way: str) -> None:
    case = LEAVING[name]
    if way == "missing_labels" and not hasattr(case.make(), way):
        return
    if name in UNABLE[way]:
        with pytest.raises((TypeError, ValueError), match=f"{way}|cannot omit|cannot use"):
            leaving(name, way, np.abs(X))
        return
    with dask.config.set(scheduler="sync"):
        if name in BY_NUMBER:
            truth = leaving(name, way, np.abs(X))
        else:
            own = {"sample_weight": np.full(N - ABSENT.sum(), 2.0)} if way == "sample_weight" else {}
            truth = case.make().fit(lazy(np.abs(X)[~ABSENT]), None if case.y is None else case.y[~ABSENT], **own)
        assert_same_numbers(leaving(name, way, RUBBISH), truth)
        for read in ["batches"] * (name in ORDERED) + ["partial_fit"] * (name in GROWING):
            if name in BY_NUMBER or "of numbers" in name:  # whose landmarks are those of the first part
                truth = leaving(name, way, np.abs(X), read)
            assert_same_numbers(leaving(name, way, RUBBISH, read), truth)


@growing
def test_a_batch_without_a_row_that_counts_is_rejected(name: str) -> None:
    y = None if LEAVING[name].y is None else LEAVING[name].y[:9]
    for model in (LEAVING[name].make(), known(name)):
        with pytest.raises((TypeError, ValueError), match=r"all weights are zero|cannot use"):
            model.partial_fit(X[:9], y, sample_weight=np.zeros(9))


# What a model says of all new rows, in one number or a few

OTHER = X[::2] + 0.3
GAPS = np.where(RNG.random((len(OTHER), D)) < 0.02, np.nan, OTHER)


class Asked(NamedTuple):
    """What is asked of a fitted model about rows (n, d), with what belongs to them; and NumPy's answer."""

    name: str
    ask: Callable[..., Any]
    truth: Callable[[Any, Array, Array | None, Array], Any]
    make: Callable[[dict[str, Any]], Any] | None = None

    @property
    def y(self) -> Array | None:
        y = CASES[self.name].y
        return y if y is None else y[::2]

    @property
    def weighs(self) -> bool:
        return self.name in SCORED and self.y is not None

    def model(self, **parameters: Any) -> Any:
        case = CASES[self.name]
        return self.make(parameters) if self.make else case.make().set_params(**parameters).fit(X, case.y)


def density(model: Any, rows: Array, y: Any, weights: Array) -> float:
    scale, C = getattr(model, "scale_", None), model.get_covariance()
    for one in model.preprocess or ():
        rows = one.apply(rows, "")
    z = (rows - model.mean_) / (1.0 if scale is None else scale)
    quadratic = np.einsum("ij,ij->i", z, np.linalg.solve(C, z.T).T)
    return float(np.mean(-0.5 * (quadratic + np.linalg.slogdet(C)[1] + D * np.log(2 * np.pi))))


def named_classes(rows: Array) -> Array:
    """Of normal classes with one covariance and the shares of the fit, X and CLASSES."""
    names = np.unique(CLASSES)
    means, shares = [np.array([of(X[one == CLASSES]) for one in names]) for of in (partial(np.mean, axis=0), len)]
    within = X - means[np.searchsorted(names, CLASSES)]
    slopes = np.linalg.solve(within.T @ within / N, means.T)
    return names[(rows @ slopes - 0.5 * (means.T * slopes).sum(axis=0) + np.log(shares / N)).argmax(axis=1)]


def hit_share(model: Any, rows: Array, y: Any, weights: Array) -> float:
    return float(np.average(named_classes(rows) == y, weights=weights))


def determination(model: Any, rows: Array, y: Any, weights: Array) -> float:
    left = y - ((rows - model.x_mean_) @ model.coef_.T + model.y_mean_)
    return float(np.mean(1 - weights @ left**2 / (weights @ (y - np.average(y, axis=0, weights=weights)) ** 2)))


def t2_of(model: Any, rows: Array) -> Array:
    return (((rows - model.mean_) @ model.components_.T) ** 2 / model.explained_variance_).sum(axis=1)


def spe_of(model: Any, rows: Array) -> Array:
    z = rows - model.mean_
    return ((z - z @ model.components_.T @ model.components_) ** 2).sum(axis=1)


def furthest(model: Any, rows: Array, y: Any, weights: Array) -> Array:
    return np.sort(t2_of(model, rows))[:-4:-1]


def map_errors(model: Any, rows: Array, y: Any, weights: Array) -> Array:
    found = []
    for one in (one for line in model.models for one in line):
        means = [one.transform(X[name == CLASSES]).mean(axis=0) for name in one.classes_]
        distances = ((one.transform(rows)[:, None] - np.array(means)) ** 2).sum(axis=2)
        found.append(np.mean(one.classes_[distances.argmin(axis=1)] != y))
    return np.array(found).reshape(2, 2)


def score(model: Any, rows: Any, y: Any, **beside: Any) -> Any:
    return model.score(rows, **beside) if y is None else model.score(rows, y, **beside)


SCORED = [name for name in CASES if hasattr(CASES[name].make(), "score")]
TRUTHS = {"O": density, "U": hit_share, "f": determination}
ROWEIS = "RoweisDiscriminantAnalysis"
ASKED = {
    **{f"score of {name}": Asked(name, score, TRUTHS[np.asarray(CASES[name].y).dtype.kind]) for name in SCORED},
    "t2_limit": Asked(
        "PCA covariance", lambda model, rows, y: model.t2_limit(0.9, rows),
        lambda model, rows, *_: np.quantile(t2_of(model, rows), 0.9),
    ),
    "spe_limit": Asked(
        "PCA covariance", lambda model, rows, y: model.spe_limit(0.9, rows),
        lambda model, rows, *_: np.quantile(spe_of(model, rows), 0.9),
    ),
    "top_outliers": Asked(
        "PCA covariance", lambda model, rows, y: model.top_outliers(rows, 3, of="t2").values, furthest
    ),
    "extremes": Asked(
        "PCA covariance", lambda model, rows, y: bp.quality.extremes(model, rows, n=2).highest_scores,
        lambda model, rows, *_: np.sort((rows - model.mean_) @ model.components_.T, axis=0)[:-3:-1].T,
    ),
    "reconstruction_error": Asked(
        "PCA covariance", lambda model, rows, y: bp.quality.reconstruction_error(model, rows).relative,
        lambda model, rows, *_: spe_of(model, rows).sum() / ((rows - model.mean_) ** 2).sum(),
    ),
    "errors of roweis_map": Asked(
        ROWEIS, lambda model, rows, y: model.errors(rows, y), map_errors,
        lambda parameters: bp.roweis_map(X, CLASSES, [0.2, 0.9], model=CASES[ROWEIS].make().set_params(**parameters)),
    ),
}  # fmt: skip
asked = pytest.mark.parametrize("what", ASKED)


@asked
@pytest.mark.usefixtures("small_groups")
def test_what_is_asked_of_new_rows_is_numpys_answer_in_every_container(what: str, tmp_path: Path) -> None:
    of = ASKED[what]
    model, truth = of.model(), of.truth
    containers = {
        "memory": OTHER, "dask": da.from_array(OTHER, (CHUNK, D)), "zarr": stored(tmp_path, OTHER, (CHUNK, D)),
        "sparse": csr_matrix(OTHER), "lazy sparse": da.from_array(csr_matrix(OTHER), chunks=(CHUNK, D)),
    }  # fmt: skip
    if "f" not in np.asarray(of.y).dtype.kind:  # pairs come as batches of pairs
        parts = [slice(i, i + 50) for i in range(0, len(OTHER), 50)]
        containers["batches"] = bp.from_batches([OTHER[part] for part in parts], shape=OTHER.shape)
        if of.weighs:
            containers["labelled batches"] = bp.from_batches(
                [(OTHER[part], of.y[part]) for part in parts], classes=np.unique(of.y)
            )
    expected = truth(model, OTHER, of.y, np.ones(len(OTHER)))
    for name, rows in containers.items():
        y = None if name == "labelled batches" else of.y
        np.testing.assert_allclose(of.ask(model, rows, y), expected, rtol=1e-8, err_msg=name)
    exact = {"solver": "covariance"} if of.name == "PCA dot" else {}  # which cannot leave rows out
    lenient, complete = of.model(nan_policy="omit", **exact), np.isfinite(GAPS).all(axis=1)
    expected = truth(lenient, GAPS[complete], None if of.y is None else of.y[complete], np.ones(complete.sum()))
    for rows in (GAPS, da.from_array(GAPS, (CHUNK, D)), csr_matrix(GAPS)):
        np.testing.assert_allclose(of.ask(lenient, rows, of.y), expected, rtol=1e-8)
    if of.weighs:
        weights = RNG.integers(0, 4, len(OTHER)).astype(float)
        expected = truth(model, OTHER, of.y, weights)
        for rows in (OTHER, da.from_array(OTHER, (CHUNK, D))):
            np.testing.assert_allclose(of.ask(model, rows, of.y, sample_weight=weights), expected, rtol=1e-8)


@asked
def test_what_is_asked_of_new_rows_is_one_planned_read(what: str, tmp_path: Path) -> None:
    """Within the memory limit, of all chunks or of none, and of rows that are preprocessed as those of the fit were."""
    of = ASKED[what]
    model = of.model()
    with (
        bp.config(memory_limit="1 KiB"),
        pytest.raises(bp.errors.MemoryBudgetError, match=r"needs .* per process.*memory_limit = 1"),
    ):
        of.ask(model, unreadable(len(OTHER), D), of.y)
    write_store(tmp_path / "x.zarr", OTHER, (CHUNK, D))
    of.ask(model, logged(tmp_path / "x.zarr", tmp_path / "log"), of.y)
    reads = reads_in(tmp_path / "log")
    assert [start for start, _ in reads] == [0, *(stop for _, stop in reads[:-1])]  # each row once
    assert reads[-1][1] == len(OTHER)
    rows = bp.open(tmp_path / "x.zarr")
    for one in model.models[0] if "map" in what else [model]:
        one.set_params(preprocess=bp.preprocessing.L2())
    with pytest.raises(ValueError, match=r"preprocess.* (set|changed) after (a|the) fit"):
        of.ask(model, rows, of.y)
    chunk = tmp_path / "x.zarr" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    model = of.model()
    with pytest.raises(bp.errors.InputChangedError, match=r"Start again with bp\.open"):
        of.ask(model, rows, of.y)
    with pytest.raises(bp.errors.CorruptedChunkError, match="c/2/0"):
        of.ask(model, bp.open(tmp_path / "x.zarr"), of.y)
    chunk.unlink()
    with pytest.raises(bp.errors.MissingChunksError, match="c/2/0"):
        of.ask(model, bp.open(tmp_path / "x.zarr"), of.y)
    holed = np.where((np.arange(len(OTHER)) == 45)[:, None] & (np.arange(D) == 2), np.nan, OTHER)
    with pytest.raises(bp.errors.NonFiniteError, match=r"row 45; the first is in row 45, column 2"):
        of.ask(model, da.from_array(holed, (CHUNK, D)), of.y)


@asked
@pytest.mark.cluster
@pytest.mark.usefixtures("small_groups")
def test_worker_processes_give_what_is_asked_of_new_rows_in_the_bits_of_one_thread(
    what: str, store: Path, client: Client
) -> None:
    of, rows = ASKED[what], bp.open(store)
    model, y = of.model(), CASES[of.name].y
    with dask.config.set(scheduler="sync"):
        expected = of.ask(model, rows, y)
    np.testing.assert_array_equal(of.ask(model, rows, y), expected)
