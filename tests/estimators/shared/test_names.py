"""Names that scikit-learn uses are translated, and misspelt ones corrected, without changing what a constructor is."""

import inspect
import re
from contextlib import suppress
from dataclasses import is_dataclass

import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca.estimators.linear.model import LinearModel
from bigpca.estimators.loading import CLASSES
from bigpca.estimators.shared.transformer import ATTRIBUTES, TRANSLATIONS
from tests.estimators.test_every_estimator import CASES, fitted


@pytest.mark.parametrize(
    ("estimator", "name", "message"),
    [
        ("PCA", "svd_solver", "PCA has no parameter 'svd_solver'. It is called solver here. \"full\" and"),
        ("PCA", "iterated_power", "It is called max_passes here"),
        ("PCA", "n_oversamples", "It is called tol here"),
        ("PCA", "copy", "X is never changed. Leave it out"),
        ("PCA", "n_component", "Did you mean n_components?"),
        ("KernelPCA", "eigen_solver", "It is called solver here"),
        ("KernelPCA", "n_jobs", "Dask's scheduler sets the threads"),
        ("NystromKernelPCA", "kernel_params", "It is called kernel here"),
        ("FisherDiscriminantAnalysis", "shrinkage", "It is called regularization here"),
        ("SupervisedPCA", "svd_solver", "Nothing of the kind is chosen here. Leave it out"),
        ("PCA", "n_iter", "It is called max_passes here. An iteration stops"),
        ("FactorAnalysis", "n_iter", "It is called max_iter here."),
        ("Ridge", "alphas", "It is called alpha here."),
        ("TICA", "dim", "It is called n_components here."),
    ],
)
def test_a_name_of_scikit_learn_s_is_translated(estimator: str, name: str, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(bp, estimator)(**{name: 1})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_a_hint_names_what_the_class_has(name: str) -> None:
    model, checked = fitted(name), 0
    for attribute in ATTRIBUTES:
        with suppress(AttributeError):
            getattr(model, attribute)
            continue
        with pytest.raises(AttributeError) as caught:
            getattr(model, attribute)
        if hint := re.search(r" Use ((\w+).*)\.$", str(caught.value)):
            assert hasattr(model, hint[2]), hint[1]
            checked += 1
    for parameter in TRANSLATIONS.keys() - model.get_params():
        with pytest.raises(TypeError) as translated:
            type(model)(**{parameter: 1})
        words = re.findall(r"(?<![\w.(])(\w+)=(?!\.)", re.sub(r"\(.*\)", "", str(translated.value)))
        words += re.findall(r"called (\w+)", str(translated.value))
        assert not set(words) - model.get_params().keys()
        assert "has no parameter" in str(translated.value)
        assert "Did you mean" not in str(translated.value)
    assert checked or name in ("SketchTransformer", "ScoredPCA")  # which have nothing of the kind


@pytest.mark.parametrize("name", CLASSES)
def test_a_constructor_still_is_its_signature(name: str) -> None:
    kind = getattr(bp, name)
    assert list(inspect.signature(kind).parameters) == list(inspect.signature(kind.__init__).parameters)[1:]
    assert not is_dataclass(kind)  # whose fields Dask takes for all of the state: two fits would have one token
    model = kind(nan_policy="omit")
    assert clone(model).get_params(deep=False) == model.get_params(deep=False)


def test_an_abstract_class_shows_no_parameters() -> None:
    assert not inspect.signature(LinearModel).parameters


SCIKIT_NAMES = ["max_iter", "svd_method", "dim", "algorithm", "n_iter"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_says_what_to_do_about_a_parameter_of_scikit_learn_s(name: str) -> None:
    kind = getattr(bp, name)
    for parameter in set(SCIKIT_NAMES) - set(inspect.signature(kind).parameters):
        with pytest.raises(
            TypeError, match=rf"{name} has no parameter '{parameter}'\. (It is called \w+ here|.*Leave it)"
        ):
            kind(**{parameter: 5})
