"""What is public has its row in the table that tries all of its kind; a message says which table lacks it."""

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

import bigpca as bp
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.base import Accumulator
from bigpca.sketches.base import Sketch
from tests.estimators import test_arguments, test_every_estimator
from tests.kernels.cases import CASES
from tests.kernels.cases_other import OTHER_CASES
from tests.passes.accumulators import test_accumulators
from tests.sketches.test_sketches import SKETCHES


def public(module: Any, kind: type) -> set[type]:
    found = (getattr(module, name) for name in module.__all__)
    return {one for one in found if isinstance(one, type) and issubclass(one, kind) and not inspect.isabstract(one)}


def below(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield from (one, *below(one))


def accumulators() -> set[type]:
    for module in walk_packages(bp.__path__, "bigpca."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    return {one for one in below(Accumulator) if one.__module__.startswith("bigpca.") and not inspect.isabstract(one)}


def kernels_in(kernel: Kernel) -> Iterator[type]:
    yield type(kernel)
    for value in vars(kernel).values():
        for one in value if isinstance(value, tuple) else (value,):
            yield from kernels_in(one) if isinstance(one, Kernel) else ()


TABLES: dict[str, tuple[Iterable[type], Iterable[type]]] = {
    "CASES of tests/estimators/test_every_estimator.py": (
        test_arguments.ESTIMATORS.values(), (type(case.make()) for case in test_every_estimator.CASES.values())
    ),
    "CASES of tests/kernels/cases.py or OTHER_CASES of cases_other.py": (
        public(bp.kernels, Kernel), (kind for case in [*CASES, *OTHER_CASES] for kind in kernels_in(case.kernel))
    ),
    "SKETCHES of tests/sketches/test_sketches.py": (
        public(bp.sketches, Sketch), (type(sketch) for sketch, _ in SKETCHES.values())
    ),
    "CASES of tests/passes/accumulators/test_accumulators.py": (
        accumulators(), (type(case.template()) for case in test_accumulators.CASES)
    ),
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_every_public_kind_has_a_row_in_its_table(table: str) -> None:
    known, tried = TABLES[table]
    lacking = sorted(one.__name__ for one in set(known) - set(tried))
    assert not lacking, f"add rows to {table}: {', '.join(lacking)}"
