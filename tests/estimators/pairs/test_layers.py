"""Layers that are fitted in one pass over batches of dicts have the bits of each fitted alone."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigpca as bp
from tests.forks import ended

SIZE = 70
# The feature maps of a small convolutional network, LeNet-5 (LeCun et al. 1998); forward hooks see four of them.
KERNELS = [np.random.default_rng(seed).standard_normal(shape).astype("f4") / 8 for seed, shape in
           enumerate([(6, 1, 5, 5), (16, 6, 5, 5)])]  # fmt: skip
DENSE = [np.random.default_rng(seed).standard_normal(shape).astype("f4") / 10 for seed, shape in
         enumerate([(256, 120), (120, 84)])]  # fmt: skip
PATTERNS = {"conv1": "n c h w -> (n h w) c", "conv2": "n c h w -> (n h w) c"}


def convolved(maps: Any, kernel: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(maps, kernel.shape[2:], axis=(2, 3))
    found = np.maximum(np.einsum("nchwij,kcij->nkhw", windows, kernel, optimize=True), 0)
    n, k, h, w = found.shape
    return found.reshape(n, k, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def forward(size: int = SIZE, step: int = 32) -> Iterator[dict[str, Any]]:
    """Yield the layers of each batch of images, as forward hooks would."""
    for start in range(0, size, step):
        images = np.random.default_rng(start).standard_normal((min(step, size - start), 1, 28, 28)).astype("f4")
        first = convolved(images, KERNELS[0])
        second = convolved(first, KERNELS[1])
        third = np.tanh(second.reshape(len(images), -1) @ DENSE[0])
        yield {"conv1": first, "conv2": second, "fc1": third, "fc2": np.tanh(third @ DENSE[1])}


def alone(name: str, estimator: Any, batches: Any) -> Any:
    rows = bp.from_batches(batch[name] for batch in batches)
    with bp.config(solve_threads=1):
        return estimator.fit(bp.open(rows, pattern=PATTERNS[name]) if name in PATTERNS else rows)


def makes() -> dict[str, Any]:
    return {"conv1": bp.PCA(whiten=True), "conv2": bp.PCA(4), "fc1": bp.ApproximatePCA(5), "fc2": bp.PCA(0.9)}


def test_every_layer_has_the_bits_of_a_fit_alone(tmp_path: Path) -> None:
    made = list(forward())
    taken = []
    counted = (taken.append(i) or batch for i, batch in enumerate(made))  # type: ignore[func-returns-value]
    models = bp.fit_layers(counted, makes(), patterns=PATTERNS, checkpoint=tmp_path / "c")
    assert taken == list(range(len(made)))
    again = bp.fit_layers(iter(made), makes(), patterns=PATTERNS, checkpoint=tmp_path / "c")
    assert models["conv1"].n_samples_ == SIZE * 144
    for name, model in models.items():
        expected = alone(name, makes()[name], made)
        assert model.components_.tobytes() == expected.components_.tobytes(), name
        assert again[name].components_.tobytes() == expected.components_.tobytes(), name
        assert type(model) is type(makes()[name])


def test_one_plan_sums_the_states() -> None:
    made = list(forward(32))
    plans = [bp.PCA(3).plan(bp.from_batches([batch[name] for batch in made])) for name in ("fc1", "fc2")]
    whole = bp.plan_layers(made, {"fc1": bp.PCA(3), "fc2": bp.PCA(3)})
    assert whole.state_bytes == sum(plan.state_bytes for plan in plans)
    reads = [f"{name}: {read}" for name, plan in zip(("fc1", "fc2"), plans, strict=True) for read in plan.parallelism]
    assert [*whole.parallelism] == reads
    assert whole.passes == 1
    assert "2 layers in one pass" in whole.reason
    assert [text for name, text in whole.cells() if name in ("solver", "others")] == [f"covariance: {whole.reason}"]
    wide = [{f"layer {i}": np.ones((8, 2000), "f4") for i in range(6)}]
    alone = bp.plan_layers([{"layer 0": wide[0]["layer 0"]}], bp.PCA(2))
    one = bp.PCA(2, memory_limit=int((alone.process_bytes + alone.resources.baseline_bytes) * 1.6))
    assert bp.plan_layers([{"layer 0": wide[0]["layer 0"]}], one).fits
    with pytest.raises(bp.errors.MemoryBudgetError):
        bp.fit_layers(wide, one)


def test_targets_beside_the_layers_are_for_probes_of_each() -> None:
    made = list(forward(128))
    targets = [batch["fc1"][:, :3] - batch["fc2"][:, :3] for batch in made]
    layers = [{name: batch[name] for name in ("fc1", "fc2")} for batch in made]
    probes = bp.fit_layers(zip(layers, targets, strict=True), bp.Ridge([1e-3, 1.0], cv=3))
    for name, probe in probes.items():
        own = bp.Ridge([1e-3, 1.0], cv=3)
        own.fit(np.concatenate([one[name] for one in layers]), np.concatenate(targets))
        np.testing.assert_allclose(probe.coef_, own.coef_, atol=1e-4)


def test_classes_beside_the_layers_are_for_discriminants_of_each() -> None:
    made, kinds = list(forward(128)), np.arange(128) % 3
    labels = np.array_split(kinds, np.cumsum([len(batch["fc1"]) for batch in made])[:-1])
    layers = [{name: batch[name] for name in ("fc1", "fc2")} for batch in made]
    with pytest.raises(ValueError, match=r"classes=\[\.\.\.\] of from_batches or fit_layers"):
        bp.fit_layers(zip(layers, labels, strict=True), bp.FisherDiscriminantAnalysis(regularization=1.0))
    found = bp.fit_layers(
        zip(layers, labels, strict=True), bp.FisherDiscriminantAnalysis(regularization=1.0), classes=range(3)
    )
    for name, model in found.items():
        own = bp.FisherDiscriminantAnalysis(regularization=1.0)
        own.fit(np.concatenate([one[name] for one in layers]), kinds)
        np.testing.assert_allclose(model.eigenvalues_, own.eigenvalues_, rtol=1e-5)


def broken() -> Iterator[Any]:
    yield {"a": np.ones((4, 3)), "b": np.eye(4)}
    raise OSError("the camera is off")


TWO = {"a": np.random.default_rng(0).standard_normal((9, 3)), "b": np.random.default_rng(1).standard_normal((9, 4))}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bp.fit_layers(TWO, bp.PCA()), TypeError, "batches is a dict; an iterable of dicts"),
        (lambda: bp.fit_layers([], bp.PCA()), ValueError, "there is no batch"),
        (lambda: bp.fit_layers([TWO["a"]], bp.PCA()), ValueError, "a first batch of ndarray; dicts"),
        (lambda: bp.fit_layers([TWO], {"c": bp.PCA()}), ValueError, r"has \['a', 'b'\], but not \['c'\]"),
        (lambda: bp.fit_layers([TWO], bp.PCA(), patterns={"c": "n c -> n c"}), ValueError, r"but not \['c'\]"),
        (lambda: bp.fit_layers([{"a": TWO["a"]}, TWO], bp.PCA()), ValueError, r"batch 1 has \[.b.\], which the first"),
        (lambda: bp.fit_layers([TWO, {"a": TWO["a"]}], bp.PCA()), ValueError, r"batch 1 is \['a'\]; a dict with"),
        (lambda: bp.fit_layers([TWO, {**TWO, "b": np.ones((9, 5))}], bp.PCA()), ValueError, r"shape \(9, 5\)"),
        *((call, ValueError, r"but the batches are iterated once, for all layers together\. Fit this")
          for call in (
              lambda: bp.fit_layers([TWO], bp.PCA(2, solver="krylov")),
              lambda: bp.fit_layers(bp.from_batches([TWO]), bp.NystromKernelPCA(2, n_landmarks=4)),
              lambda: bp.plan_layers([TWO], bp.PCA(2, nan_policy="mean")),
          )),
        (lambda: bp.fit_layers([(TWO, np.arange(9) % 2)], bp.SupervisedPCA(1, label_kernel="rbf")), ValueError,
         r"layer '[ab]': the labels come .* all labels are needed before the rows are read\. Dis"),
        (lambda: bp.fit_layers([TWO], {"a": bp.PCA(9), "b": bp.PCA()}), ValueError, "n_components = 9"),
        (lambda: bp.fit_layers(broken(), bp.PCA()), OSError, "the camera is off"),
        (lambda: bp.fit_layers([{**TWO, "a": TWO["a"] * np.nan}], bp.PCA()), bp.errors.NonFiniteError, "NaN"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_ends_all_fits(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


KILLED = """
import os, signal, sys
import bigpca as bp
from tests.estimators.pairs.test_layers import forward
def batches():
    for i, batch in enumerate(forward(1024)):
        if i == 24 and sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        yield {name: batch[name] for name in ("conv1", "fc1")}
models = bp.fit_layers(batches(), bp.PCA(4), checkpoint=sys.argv[1], patterns={"conv1": "n c h w -> (n h w) c"})
for name, model in models.items():
    model.save(f"{sys.argv[1]}-{name}.zarr")
"""


@pytest.mark.cluster
def test_a_killed_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    assert ended(KILLED, tmp_path / "whole", "") == 0
    assert ended(KILLED, tmp_path / "killed", "kill") == -signal.SIGKILL
    assert ended(KILLED, tmp_path / "killed", "") == 0
    for name in ("conv1", "fc1"):
        whole, resumed = (bp.load(tmp_path / f"{run}-{name}.zarr").components_ for run in ("whole", "killed"))
        assert whole.tobytes() == resumed.tobytes()


def experts(*counts: int, wrong: Any = None) -> Iterator[dict[str, Any]]:
    """Yield batches of a dense layer, and of an expert that is given so many rows of each."""
    for number, count in enumerate(counts):
        rng = np.random.default_rng(number)
        rows = rng.standard_normal((count, 6)).astype("f4")
        rows[: number == 1, 2:3] = np.nan if wrong == "NaN" else rows[: number == 1, 2:3]
        yield {"dense": rng.standard_normal((20, 4)), "expert": wrong if isinstance(wrong, list) else rows}


def test_a_layer_without_rows_in_some_batches_is_that_of_its_rows() -> None:
    counts = (0, 9, 0, 0, 0, 7, 12)
    models = bp.fit_layers(experts(*counts), bp.PCA(2))
    with bp.config(solve_threads=1):
        own = bp.PCA(2).fit(bp.from_batches(batch["expert"] for batch in experts(*counts)))
    assert models["expert"].components_.tobytes() == own.components_.tobytes()
    assert (models["expert"].n_samples_, models["dense"].n_samples_) == (28, 140)
    assert bp.plan_layers(experts(*counts), bp.PCA(2)).passes == 1


@pytest.mark.parametrize(
    ("counts", "wrong", "message"),
    [
        ((5, 5), "NaN", "layer 'expert': 1 NaN or infinite value"),
        ((0, 0), None, "layer 'expert': there is nothing to read"),
        ((1, 0), None, "layer 'expert': Found array with 1 sample"),
        ((5, 5), [], r"layer 'expert': batch 0 .* has shape \(0,\)"),
        ((5, 5), [["a", "b"]], "layer 'expert': .*dtype <U1 cannot be used"),
    ],
)
def test_what_is_wrong_with_one_layer_names_it(counts: tuple[int, ...], wrong: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        bp.fit_layers(experts(*counts, wrong=wrong), bp.PCA(2))


def tables(of: str) -> tuple[Any, dict[str, Any]]:
    """The layers of a network as tables with columns of vectors, and what fit_layers is told of these."""
    arrow = pytest.importorskip("pyarrow")
    whole = {name: np.concatenate([batch[name] for batch in forward()]) for name in ("fc1", "fc2")}
    table = arrow.table({"id": [f"image {i}" for i in range(SIZE)]} | {name: list(one) for name, one in whole.items()})
    ways = {
        "table": (table, {"keys": "id"}),
        "batches": (table.drop_columns("id").to_batches(max_chunksize=30), {}),
        "frames": ([pd.DataFrame({name: list(one[i : i + 35]) for name, one in whole.items()}) for i in (0, 35)], {}),
        "keys": (({"id": np.arange(35) + i, **{n: one[i : i + 35] for n, one in whole.items()}} for i in (0, 35)),
                 {"keys": "id"}),
    }  # fmt: skip
    return ways[of]


@pytest.mark.parametrize("of", ["table", "batches", "frames", "keys"])
def test_layers_come_in_all_that_from_batches_takes(of: str) -> None:
    batches, options = tables(of)
    found = bp.fit_layers(batches, bp.PCA(2), **options)
    plain = bp.fit_layers(({name: batch[name] for name in ("fc1", "fc2")} for batch in forward()), bp.PCA(2))
    assert set(found) == set(plain)
    for name, model in found.items():
        assert model.components_.tobytes() == plain[name].components_.tobytes()


def test_keys_that_a_batch_of_layers_lacks_are_named() -> None:
    with pytest.raises(ValueError, match=r"but not \['id'\]"):
        bp.fit_layers(forward(), bp.PCA(2), keys="id")
    later = iter([{"id": [1, 2, 3], "a": np.eye(3)}, {"a": np.eye(3)}])
    with pytest.raises(ValueError, match=r"batch 1 is .*; a dict with .*'id'"):
        bp.fit_layers(later, bp.PCA(1), keys="id")


@pytest.mark.parametrize("made", [list, iter])
def test_batches_of_dicts_are_taken_as_from_batches_returns_them(made: Any) -> None:
    plain = bp.fit_layers(forward(), bp.PCA(2), patterns=PATTERNS)
    pairs = [{"one": batch["fc1"], "two": batch["fc2"]} for batch in forward()]
    found = bp.fit_layers(bp.from_batches(made(pairs)), bp.PCA(2))
    for own, name in (("one", "fc1"), ("two", "fc2")):
        assert found[own].components_.tobytes() == plain[name].components_.tobytes()
    with pytest.raises(ValueError, match="a first batch of ndarray; dicts"):
        bp.fit_layers(bp.from_batches([np.ones((3, 2))]), bp.PCA(1))
