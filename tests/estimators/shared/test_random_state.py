"""``random_state`` may be all that scikit-learn's users give: a seed is drawn once a fit, kept, and resumed from."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import bigpca as bp
from bigpca.engine.events import GroupEvent
from tests.estimators.stores import stored

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 6)) @ RNG.standard_normal((6, 6)) + 3.0
Y = np.arange(80) % 3
REAL = X[:, 0] + X[:, 1] ** 2
SEEDED: dict[str, Callable[[Any], Any]] = {
    "PCA": lambda state: bp.PCA(2, solver="krylov", random_state=state),
    "KernelPCA": lambda state: bp.KernelPCA(2, kernel="rbf", random_state=state),
    "ApproximateKernelPCA": lambda state: bp.ApproximateKernelPCA(2, kernel="rbf", random_state=state),
    "NystromKernelPCA": lambda state: bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=20, random_state=state),
    "KernelSupervisedPCA": lambda state: bp.KernelSupervisedPCA(2, kernel="rbf", n_landmarks=20, random_state=state),
    "KernelRoweisDiscriminantAnalysis": lambda state: bp.KernelRoweisDiscriminantAnalysis(
        2, kernel="rbf", n_landmarks=20, random_state=state
    ),
    "SupervisedRandomProjection": lambda state: bp.SupervisedRandomProjection(2, random_state=state),
    "ScoredPCA": lambda state: bp.ScoredPCA(1, n_features_to_select="cv", random_state=state),
}
STATES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "RandomState": lambda: np.random.RandomState(5),
    "Generator": lambda: np.random.default_rng(5),
}
pytestmark = pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")


def labels(name: str) -> Any:
    return REAL if name == "SupervisedRandomProjection" else Y


@pytest.mark.parametrize(
    ("name", "state"), [*((name, "None") for name in SEEDED), ("PCA", "RandomState"), ("NystromKernelPCA", "Generator")]
)
def test_a_seed_is_drawn_at_each_fit_and_gives_the_fit_again(name: str, state: str, tmp_path: Path) -> None:
    np.random.seed(3)  # noqa: NPY002  (what None draws from, as in scikit-learn)
    model = SEEDED[name](STATES[state]())
    before = copy.deepcopy(model.random_state)
    repr(clone(model.set_params(memory_limit="8 GiB")))
    model.plan(X, labels(name))  # neither of these draws
    first = model.fit(X, labels(name)).seed_
    assert first == SEEDED[name](before).fit(X, labels(name)).seed_ or state == "None"
    scores = model.transform(X)
    model.save(tmp_path / "model")
    assert bp.load(tmp_path / "model").seed_ == first
    np.testing.assert_array_equal(SEEDED[name](first).fit(X, labels(name)).transform(X), scores)
    assert model.fit(X, labels(name)).seed_ != first


def test_none_follows_numpys_global_seed() -> None:
    seeds = []
    for _ in range(2):
        np.random.seed(4)  # noqa: NPY002
        seeds.append(bp.PCA(2, random_state=None).fit(X).seed_)
    assert seeds[0] == seeds[1]


@pytest.mark.parametrize(
    ("name", "state"), [*((name, "None") for name in SEEDED), ("PCA", "RandomState"), ("NystromKernelPCA", "Generator")]
)
def test_a_rerun_takes_the_seed_of_the_checkpoint_and_reads_nothing_again(
    name: str, state: str, tmp_path: Path
) -> None:
    rows, place = stored(tmp_path, X, (20, 6)), tmp_path / "checkpoint"
    first = SEEDED[name](STATES[state]()).fit(rows, labels(name), checkpoint=place)
    events: list[Any] = []
    again = SEEDED[name](None).fit(rows, labels(name), checkpoint=place, progress=events.append)
    assert again.seed_ == first.seed_
    np.testing.assert_array_equal(again.transform(X), first.transform(X))
    groups = [event for event in events if isinstance(event, GroupEvent)]
    assert not groups
    if name == "NystromKernelPCA":
        with pytest.raises(bp.errors.CheckpointError, match="seed"):
            SEEDED[name](first.seed_ + 1).fit(rows, labels(name), checkpoint=place)


def test_a_damaged_record_of_a_checkpoint_gives_no_seed(tmp_path: Path) -> None:
    rows, place = stored(tmp_path, X, (20, 6)), tmp_path / "checkpoint"
    first = SEEDED["NystromKernelPCA"](None).fit(rows, checkpoint=place)
    (record,) = place.glob("*/run.json")
    content = json.loads(record.read_text())
    for seed in ("many", -1, True, None):
        record.write_text(json.dumps(content | {"seed": seed}))
        with pytest.raises(bp.errors.CheckpointError, match="belongs to another computation"):
            SEEDED["NystromKernelPCA"](None).fit(rows, checkpoint=place)
    record.write_text(json.dumps(content))
    assert SEEDED["NystromKernelPCA"](None).fit(rows, checkpoint=place).seed_ == first.seed_


@pytest.mark.parametrize(
    ("name", "state", "error"),
    [*((name, "0", TypeError) for name in SEEDED), ("PCA", 1.5, TypeError), ("PCA", True, TypeError),
     ("PCA", -1, ValueError)],
)  # fmt: skip
def test_what_is_no_random_state_is_rejected_by_plan_and_fit(name: str, state: Any, error: type[Exception]) -> None:
    for call in ("plan", "fit"):
        with pytest.raises(error, match=r"random_state = .* a seed must be an integer of at least 0"):
            getattr(SEEDED[name](state), call)(X, labels(name))


def test_an_estimator_inside_another_draws_once() -> None:
    inner = bp.KernelPCA(1, kernel="rbf", random_state=np.random.RandomState(1))
    outer = bp.ScoredPCA(n_features_to_select=3, estimator=inner).fit(X, Y)
    assert outer.estimator_.seed_ == np.random.RandomState(1).randint(2**31 - 1)
