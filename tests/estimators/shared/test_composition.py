"""What an estimator is made of: at most two classes above its own, and attributes that no failed fit changes."""

from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca.estimators import loading

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)) + np.arange(5)
Y = np.arange(60) % 3
SMALL: dict[str, dict[str, Any]] = {"SketchTransformer": {}, "FisherDiscriminantAnalysis": {}, "Ridge": {}}
PAIRED = ("CCA", "PLSSVD", "PLSRegression", "Ridge")
LABELLED = ("Discriminant", "Supervised", "Scored")


def own(cls: type) -> list[type]:
    return [one for one in cls.__mro__[1:] if one.__module__.startswith("bigpca.")]


# Rooms of methods: of models that grow, that are linear maps, and so on.
CLASSES = {name: getattr(bp, name) for name in loading.CLASSES}
ROOMS = {
    "BoundedSubspaces",
    "CommonParameters",
    "Density",
    "FeatureAxes",
    "Grows",
    "Inverts",
    "LabelledFeatures",
    "LinearExports",
    "OfLabelKernel",
    "OfModels",
    "Predicts",
    "RoweisPoint",
    "RowStatistics",
    "SideScores",
    "SteppedModel",
    "SumsModel",
    "Tables",
}


@pytest.mark.parametrize("cls", CLASSES.values())
def test_two_classes_of_bigpca_beside_rooms_of_methods_at_most_are_above_an_estimator(cls: type) -> None:
    assert len([one for one in own(cls) if one.__name__ not in ROOMS]) <= 2
    assert not {one.__name__ for one in own(cls)} & CLASSES.keys()


@pytest.mark.parametrize("method", ["fit", "plan", "transform", "fit_transform", "save"])
def test_what_every_estimator_does_has_one_text(method: str) -> None:
    assert not [name for name, cls in CLASSES.items() if method in vars(cls)]
    # Estimators of two sides transform both.
    assert len({getattr(cls, method) for name, cls in CLASSES.items() if name not in PAIRED}) == 1


def test_a_regression_that_fails_at_the_end_of_a_fit_changes_no_attribute() -> None:
    model = bp.KernelPCA(2, kernel="rbf", fit_inverse_transform=True).fit(X)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="fit_inverse_transform regresses rows on their scores"):
        model.set_params(kernel=bp.kernels.ChiSquare()).fit(np.abs(X))
    assert all(vars(model)[name] is value for name, value in before.items() if name != "kernel")
