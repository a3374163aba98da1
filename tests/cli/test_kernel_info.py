"""``bigpca info`` of saved kernel models: the kernel, what it cost, and the eigenvalues with what is known of them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca.kernels import RBF, Hellinger, Tanh
from tests.cli.running import line_of, run, run_json

N, D, K = 300, 5, 3
KERNEL = RBF(0.1)
MODELS: dict[str, Any] = {
    "dense": bp.KernelPCA(K, kernel=KERNEL, solver="dense"),
    "krylov": bp.KernelPCA(K, kernel=KERNEL, solver="krylov"),
    "features": bp.KernelPCA(K, kernel=Hellinger()),
    "indefinite": bp.KernelPCA(K, kernel=Tanh(gamma=1.0, coef0=-1.0)),
    "sketch": bp.ApproximateKernelPCA(K, kernel=KERNEL),
    "landmarks": bp.NystromKernelPCA(K, kernel=KERNEL, n_landmarks=40),
}


@pytest.fixture
def rows() -> np.ndarray:
    found: np.ndarray = np.random.default_rng(0).standard_normal((N, D)).cumsum(axis=1)
    return np.abs(found)


@pytest.mark.parametrize("name", MODELS)
def test_info_shows_the_kernel_the_evaluations_and_the_eigenvalues(name: str, rows: np.ndarray, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.ApproximationWarning)
        model = MODELS[name].fit(rows)
    model.save(tmp_path / "m.zarr")
    said, record = run("info", tmp_path / "m.zarr").stdout, run_json("info", tmp_path / "m.zarr")
    assert (record["kernel"], line_of(said, "kernel ")) == (repr(model.kernel_),) * 2
    assert record["kernel_evaluations"] == model.kernel_evaluations_
    assert line_of(said, "kernel evaluations") == f"{model.kernel_evaluations_:,}"
    assert record["eigenvalues"] == model.eigenvalues_.tolist()
    assert line_of(said, "    kpca0").startswith(f"{model.eigenvalues_[0]:.6g}")
    np.testing.assert_allclose(record["explained_variance"], model.explained_variance_, rtol=1e-14)
    assert record["captured"] == pytest.approx(model.explained_variance_ratio_.sum(), rel=1e-14)
    assert line_of(said, "solver") == model.solver_
    expected = {"indefinite": {"negative_mass"}, "landmarks": {"landmarks", "trace_error"}}.get(name, set())
    facts = {"negative_mass", "landmarks", "trace_error"}
    assert facts & set(record) == expected
    assert {fact for fact in facts if f"\n{fact.replace('_', ' ')}  " in said} == expected


@pytest.mark.parametrize(("name", "certain"), [("krylov", "with probability 0.999"), ("landmarks", "always")])
def test_the_bounds_that_info_shows_hold_the_exact_eigenvalues(
    name: str, certain: str, rows: np.ndarray, tmp_path: Path
) -> None:
    MODELS[name].fit(rows).save(tmp_path / "m.zarr")
    said = run("info", tmp_path / "m.zarr").stdout
    assert line_of(said, "bounds hold") == certain
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    C = np.exp(-0.1 * squares)
    C -= C.mean(axis=0)
    exact = np.linalg.eigvalsh(C - C.mean(axis=1)[:, None])[::-1]
    shown = re.findall(r"\(([\d.]+) to ([\d.]+)\) ", said)
    assert len(shown) == K
    for (low, high), value in zip(shown, exact, strict=False):
        assert float(low) * (1 - 1e-5) <= value <= float(high) * (1 + 1e-5)  # six digits are shown


def test_an_exact_answer_of_a_kernel_has_no_certificate(rows: np.ndarray, tmp_path: Path) -> None:
    for name in ("dense", "features"):
        MODELS[name].fit(rows).save(tmp_path / f"{name}.zarr")
        assert run_json("info", tmp_path / f"{name}.zarr")["certificate"] is None
        assert " to " not in line_of(run("info", tmp_path / f"{name}.zarr").stdout, "    kpca0")
