"""The table of parameters: its words are those that are implemented, its names those of constructors and settings."""

import inspect

import bigpca as bp
from bigpca.landmarks import SAMPLINGS
from bigpca.parameters import PARAMETERS
from bigpca.settings import DEFAULTS


def test_samplings_are_those_that_are_implemented() -> None:
    assert PARAMETERS["sampling"].words == tuple(SAMPLINGS)


def test_every_row_is_a_parameter_of_a_constructor_or_a_setting_of_runs() -> None:
    kinds = [getattr(bp, name) for name in bp.__all__ if inspect.isclass(getattr(bp, name))]
    names = {name for kind in kinds for name in inspect.signature(kind).parameters}
    assert PARAMETERS.keys() <= names | DEFAULTS.keys()
