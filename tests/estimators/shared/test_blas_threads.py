"""Bits do not depend on the BLAS threads that a process was started with, nor on when its cluster was."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import bigpca as bp
from bigpca.blas import numerical_environment
from tests.estimators.shared import every_fit
from tests.estimators.shared.every_fit import RECORD, every, public

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


@pytest.fixture(scope="module")
def one_thread() -> dict[str, str]:
    """In this process, which has one."""
    with warnings.catch_warnings(), bp.config(solve_threads=2):
        warnings.simplefilter("ignore")
        return every("memory", [])


def test_no_bit_depends_on_the_blas_threads_of_the_calling_process(one_thread: dict[str, str]) -> None:
    assert len(one_thread) > 1000
    fits = "covariance", "dot", "krylov", "ritz", "kernel dense", "rpcholesky", "roweis", "scored", "canonical"
    chosen = {key: digest for key, digest in one_thread.items() if key.partition(".")[0].partition(":")[0] in fits}
    assert differing(chosen, digests("memory", 2, *fits)) == []


def test_public_results_have_the_bits_on_record(one_thread: dict[str, str]) -> None:
    """Where libraries and BLAS are those of the record: a change of the code that should move no bit moves none.

    A change that moves bits on purpose writes the record anew, by ``python every_fit.py record``.
    """
    records = json.loads(RECORD.read_text())
    here = [one["digests"] for one in records if one["environment"] == numerical_environment()]
    if not here:
        pytest.skip(f"the records are of {[one['environment'] for one in records]}")
    assert differing(here[0], public(one_thread)) == []


def test_digests_of_a_new_fit_are_recorded_beside_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = {"environment": "other", "digests": {"a": "1"}}, numerical_environment()
    path = tmp_path / "digests.json"
    path.write_text(json.dumps([{"environment": here, "digests": {"a": "2", "b": "3"}}, other]))
    monkeypatch.setattr(every_fit, "RECORD", path)
    new = {"b: scores": "5", "c: scores": "6"}
    every_fit.record(new, added=True)
    assert json.loads(path.read_text()) == [other, {"environment": here, "digests": {"a": "2", **public(new)}}]
    monkeypatch.setattr(every_fit, "numerical_environment", lambda: {"new": "one"})
    with pytest.raises(SystemExit, match="has no record of this environment"):
        every_fit.record(new, added=True)
    monkeypatch.undo()
    monkeypatch.setattr(every_fit, "RECORD", path)
    every_fit.record(new, added=False)
    assert json.loads(path.read_text()) == [other, {"environment": here, "digests": public(new)}]


@pytest.mark.cluster
def test_a_cluster_that_was_started_before_the_first_fit_gives_the_bits_of_threads() -> None:
    fits = "covariance", "krylov", "rpcholesky", "kernel dense"
    assert differing(digests("cluster", 2, *fits), digests("threads", 1, *fits)) == []
