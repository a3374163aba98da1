"""The errors that callers catch by name are also the built-in kind that they would catch without it."""

import inspect
import warnings

import numpy as np
import pytest

import bigpca as bp
from bigpca import errors
from bigpca.errors import format_bytes

KINDS = {
    "EvaluationBudgetError": ValueError,
    "MemoryBudgetError": MemoryError,
    "MissingChunksError": ValueError,
    "NonFiniteError": ValueError,
    "CorruptedChunkError": ValueError,
    "InputChangedError": ValueError,
    "ModelFormatError": ValueError,
    "UnansweredError": TimeoutError,
    "OutputExistsError": FileExistsError,
    "OutputLockedError": RuntimeError,
    "OutputWriteError": OSError,
    "CheckpointError": RuntimeError,
    "ApproximationWarning": UserWarning,
}


@pytest.mark.parametrize("name", KINDS)
def test_an_error_is_public_and_of_its_built_in_kind(name: str) -> None:
    assert name in dir(bp.errors)
    assert issubclass(getattr(errors, name), KINDS[name])


def test_every_error_class_is_in_the_table() -> None:
    own = {"UndeclaredPassError"}  # of bigpca's own making: nobody is to catch it
    found = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert found - own == set(KINDS)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (-3 * 2**30, "-3.0 GiB"),
        (2**40, "1.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_bytes_are_written_in_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_a_warning_points_at_the_line_that_asked() -> None:
    X = np.random.default_rng(0).standard_normal((30, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bp.KernelPCA(2, kernel=bp.kernels.Tanh(1.0, -1.0)).fit(X)
    assert [warning.filename for warning in caught] == [__file__]
