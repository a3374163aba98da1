"""Bits do not depend on the BLAS threads that a process was started with, nor on when its cluster was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bigpca as bp
from tests.estimators.shared.every_fit import FITS

SCRIPT = Path(__file__).with_name("every_fit.py")


def digests(where: str, threads: int, *fits: str) -> dict[str, str]:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(threads)}
    run = subprocess.run(
        [sys.executable, SCRIPT, where, *fits], env=environment, capture_output=True, check=True, timeout=600
    )
    found: dict[str, str] = json.loads(run.stdout)
    return found


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def test_no_bit_depends_on_the_blas_threads_of_the_calling_process() -> None:
    one = digests("memory", 1)
    assert len(one) > 1000
    assert differing(one, digests("memory", 2)) == []


@pytest.mark.cluster
def test_a_cluster_that_was_started_before_the_first_fit_gives_the_bits_of_threads() -> None:
    fits = "covariance", "krylov", "rpcholesky", "kernel dense"
    assert differing(digests("cluster", 2, *fits), digests("threads", 1, *fits)) == []


def test_every_estimator_is_among_the_fits() -> None:
    classes = {type(make()).__name__ for make, _ in FITS.values()}
    assert classes == {name for name in bp.__all__ if hasattr(getattr(bp, name), "fit")}
