"""Rows are added without a solve: it waits until a fitted attribute is first asked for, and is made once."""

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

import bigpca as bp
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.sketches import Gaussian

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 6)) @ RNG.standard_normal((6, 6)) + 3.0
Y = np.arange(90) % 3
GROWING: dict[str, Callable[[], Any]] = {
    "PCA": lambda: bp.PCA(2),
    "ApproximatePCA": lambda: bp.ApproximatePCA(2, Gaussian(6)),
    "NystromKernelPCA": lambda: bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=20),
    "SupervisedPCA": lambda: bp.SupervisedPCA(2),
    "RoweisDiscriminantAnalysis": lambda: bp.RoweisDiscriminantAnalysis(2),
    "FisherDiscriminantAnalysis": lambda: bp.FisherDiscriminantAnalysis(2),
    "KernelSupervisedPCA": lambda: bp.KernelSupervisedPCA(2, kernel="rbf", n_landmarks=20),
    "KernelRoweisDiscriminantAnalysis": lambda: bp.KernelRoweisDiscriminantAnalysis(2, kernel="rbf", n_landmarks=20),
}
growing = pytest.mark.parametrize("name", GROWING)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the classes whose waiting solves were made."""
    made: list[str] = []

    def counting(solve: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Any, kept: Any, *again: Any) -> Any:
            if "n_features_in_" in vars(self):  # else it solves a fit
                made.append(type(self).__name__)
            return solve(self, kept, *again)

        return counted

    for cls in {next(one for one in type(make()).__mro__ if "_solve" in vars(one)) for make in GROWING.values()}:
        monkeypatch.setattr(cls, "_solve", counting(cls._solve))  # type: ignore[attr-defined]
    return made


def grown(name: str) -> Any:
    """A model that waits to be solved for the last batches."""
    model = GROWING[name]()
    for start in range(0, 90, 30):
        model.partial_fit(X[start : start + 30], Y[start : start + 30])
    return model


ASKED: dict[str, Callable[[Any, Path], Any]] = {
    "attribute": lambda model, _: model.n_components_,
    "transform": lambda model, _: model.transform(X),
    "save": lambda model, folder: model.save(folder / "model"),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "names": lambda model, _: model.get_feature_names_out(),
    "check of an attribute": lambda model, _: check_is_fitted(model, "total_variance_"),
}


@growing
def test_rows_are_added_without_a_solve_and_what_only_looks_makes_none(name: str, solves: list[str]) -> None:
    model = grown(name)
    check_is_fitted(model)
    assert clone(model).get_params().keys() == model.get_params().keys()
    assert "fitted" in model._repr_mimebundle_()["text/html"]
    assert name in repr(model)
    assert not {"components_", "eigenvalues_"} & set(dir(model))
    assert copy.copy(model).n_features_in_ == 6
    assert not hasattr(model, "nothing")
    assert solves == []


@growing
def test_one_solve_answers_all_that_is_asked_and_equals_an_eager_one(
    name: str, solves: list[str], tmp_path: Path
) -> None:
    eager = GROWING[name]()
    for start in range(0, 90, 30):
        eager.partial_fit(X[start : start + 30], Y[start : start + 30]).transform(X)
    for what, ask in ASKED.items():
        model = grown(name)
        solves.clear()
        ask(model, tmp_path)
        if what not in ("pickle", "deepcopy"):
            np.testing.assert_allclose(model.transform(X), eager.transform(X), rtol=0, atol=1e-12)
        for attribute in (a for a in dir(eager) if a[-1] == "_" != a[0]):
            getattr(model, attribute)
        assert solves == [name], what
    np.testing.assert_allclose(bp.load(tmp_path / "model").transform(X), eager.transform(X), rtol=0, atol=1e-12)
    assert dir(model) == dir(eager)


@growing
def test_rows_go_on_being_added_to_a_copy_a_loaded_model_and_one_that_waits(name: str, tmp_path: Path) -> None:
    model = GROWING[name]().partial_fit(X[:60], Y[:60]).partial_fit(X[60:70], Y[60:70])
    twin = copy.copy(model)
    model.save(tmp_path / "model")
    expected = model.transform(X)
    for other in (twin, bp.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        more = copy.copy(model).partial_fit(X[70:], Y[70:]).transform(X)
        np.testing.assert_allclose(other.partial_fit(X[70:], Y[70:]).transform(X), more, rtol=0, atol=1e-12)
        assert other.n_samples_ == 90
    np.testing.assert_array_equal(model.transform(X), expected)


@growing
def test_threads_that_ask_at_once_share_one_solve(name: str, solves: list[str]) -> None:
    model, gate = grown(name), threading.Barrier(4, timeout=60)
    solves.clear()

    def ask() -> Any:
        gate.wait()
        return model.transform(X)

    with ThreadPoolExecutor(4) as pool:
        found = [task.result(60) for task in [pool.submit(ask) for _ in range(4)]]
    assert solves == [name]
    assert all(np.array_equal(one, found[0]) for one in found)


def test_a_solve_that_fails_raises_its_own_error_each_time_and_more_rows_mend_it() -> None:
    huge = np.full((4, 3), 1e200)
    huge[::2] *= -1
    model = bp.PCA(2).partial_fit(huge)
    for ask in (lambda: model.components_, lambda: hasattr(model, "components_"), lambda: model.transform(huge),
                lambda: pickle.dumps(model)):  # fmt: skip
        with np.errstate(over="ignore"), pytest.raises(ValueError, match=r"the total variance is .*overflow float64"):
            ask()
    assert model.n_samples_ == 4
    one_class = bp.SupervisedPCA(1).partial_fit(X[:30], Y[:30]).set_params(n_components=5)
    with pytest.raises(ValueError, match="the labels determine 2 axes"):
        _ = one_class.partial_fit(X[30:60], Y[30:60]).components_
    assert one_class.set_params(n_components=2).partial_fit(X[60:], Y[60:]).components_.shape == (2, 6)


def test_parameters_are_those_of_the_last_batch() -> None:
    model = bp.PCA(2).partial_fit(X).set_params(n_components=4)
    assert model.n_components_ == 2
    assert model.partial_fit(X).n_components_ == 4


def test_a_fit_forgets_what_waited(solves: list[str]) -> None:
    model = grown("PCA").fit(X[:20])
    assert (model.n_samples_, solves) == (20, [])
    assert model.transform(X).shape == (90, 2)
    assert solves == []


@pytest.mark.parametrize("dtypes", [("f8",), ("f4",), ("u1", "f4", "i8", "f8")], ids=str)
def test_small_batches_are_multiplied_together_and_merged_saved_and_counted_as_others(
    dtypes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(2).integers(0, 256, (120, 6))
    folds: list[int] = []
    read = CovarianceFit.read
    monkeypatch.setattr(CovarianceFit, "read", lambda fit, run: (folds.append(fit.rows.n_rows), read(fit, run))[1])
    model = bp.PCA(2)
    for i, start in enumerate(range(0, 120, 4)):
        batch = data[start : start + 4].astype(dtypes[i % len(dtypes)])
        model.partial_fit(batch)
        batch[:] = 0  # what was added is the model's own
        assert model.n_samples_ == start + 4
    assert folds == [4]
    expected = bp.PCA(2, solver="covariance").fit(data.astype("f8"))
    np.testing.assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-12)
    assert len(folds) == 1 + len(set(dtypes))
    waiting = copy.copy(model).partial_fit(data[:9]).partial_fit(data[9:20])
    both = bp.merge(waiting, model)
    twice = bp.PCA(2, solver="covariance").fit(np.concatenate([data, data, data[:20]]).astype("f8"))
    np.testing.assert_allclose(both.components_, twice.components_, atol=1e-10)
    waiting.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").partial_fit(data[20:]).n_samples_ == 240
    with pytest.raises(bp.errors.NonFiniteError, match="1 NaN or infinite value in 1 row"):
        waiting.partial_fit(np.where(np.arange(12).reshape(2, 6) == 3, np.nan, 1.0))
    assert waiting.n_samples_ == 140


@growing
def test_rows_are_not_added_to_sums_of_rows_that_were_preprocessed_in_another_way(name: str) -> None:
    model = grown(name).set_params(preprocess=bp.preprocessing.L2())
    with pytest.raises(ValueError, match=r"preprocess, nan_policy, center or scale was changed after the fit"):
        model.partial_fit(X[:30], Y[:30])
    assert model.set_params(preprocess=None).n_samples_ == 90


@growing
def test_what_a_class_has_no_use_for_is_rejected_before_rows_are_added(name: str) -> None:
    model = grown(name)
    with pytest.raises(ValueError, match=r"the rows have 1 covariates, but .* was fitted with 0"):
        model.partial_fit(X[:30], Y[:30], covariates=Y[:30])
    if name != "PCA":
        with pytest.raises(TypeError, match="groups were passed to"):
            model.partial_fit(X[:30], Y[:30], groups=Y[:30])
    if not hasattr(model, "missing_labels"):
        with pytest.raises(TypeError, match=r"classes were passed to .*, which has no labels"):
            model.partial_fit(X[:30], classes=[0, 1])
    else:
        with pytest.raises(ValueError, match="3"):
            model.partial_fit(X[:30], Y[:30] + 1, classes=[0, 1, 2])
    assert model.n_samples_ == 90


@growing
def test_an_attribute_that_is_set_is_that_of_the_file(name: str, tmp_path: Path) -> None:
    model = grown(name)
    if "Kernel" in name:
        model.eigenvalues_ = 2 * model.eigenvalues_
        model.save(tmp_path / "model")
        assert np.array_equal(bp.load(tmp_path / "model").eigenvalues_, model.eigenvalues_)
    elif "components_" not in type(model)._traits.result.__dataclass_fields__:
        with pytest.raises(AttributeError, match="components_ follows from other numbers of the fit"):
            model.components_ = -model.components_
    else:
        model.components_ = -model.components_
        model.save(tmp_path / "model")
        np.testing.assert_array_equal(bp.load(tmp_path / "model").transform(X), model.transform(X))
