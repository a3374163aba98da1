"""The house does not become shallower: shares and shapes of the code are no worse than those on record.

``tests/house.json`` has the record. A change that improves a figure records it: ``python tests/house.py >
tests/house.json``. One that makes a figure worse does so, too, and says the reason in its commit message.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bigpca.solvers.eigh import fix_signs
from tests import house

pytestmark = pytest.mark.filterwarnings("ignore:This process .*is multi-threaded:DeprecationWarning")  # in a fork
RECORD: dict[str, float] = json.loads(Path(__file__).with_name("house.json").read_text())
SIZES = (
    "files",
    "code lines",
    "code lines as the formatter writes them",
)  # are bars of single steps: features add to them
RISING = ("comments per 100 code lines where numbers are made",)

# What implements each protocol.
PROTOCOLS = {
    "arrays.py:Shaped": "arrays, tables and matrices of any library",
    "passes/accumulators/thin_products.py:Factor": "DenseFactor, SketchFactor",
    "passes/accumulators/thin_products.py:LeftRows": "arrays, DeltaRows",
    "engine/jobs.py:GroupTask": "FoldGroup, PanelGroup",
    "engine/checkpoint.py:StateStore": "Merging, SegmentStates",
    "engine/interfaces.py:RowSource": "DirectReader, GraphReader, HandedRows",
    "engine/interfaces.py:State": "Moments, DotPanels",
    "solvers/krylov.py:Multiplied": "KernelOperator, CovarianceOperator",
}


@pytest.fixture(scope="module")
def walks() -> Iterator[dict[str, house.Walk]]:
    yield dict(house.walks())
    house.files.cache_clear()  # trees of 150 MiB


@pytest.fixture(scope="module")
def figures(walks: dict[str, house.Walk]) -> dict[str, float]:
    return house.figures(walks)


@pytest.mark.parametrize("name", [name for name in RECORD if name not in SIZES])
def test_a_figure_of_the_house_is_no_worse_than_on_record(name: str, figures: dict[str, float]) -> None:
    now, then = figures[name], RECORD[name]
    assert now >= then if name in RISING else now <= then


def test_every_figure_is_on_record(figures: dict[str, float]) -> None:
    assert figures.keys() == RECORD.keys()


def test_protocols_are_listed_with_what_implements_them() -> None:
    assert set(house.protocols()) == PROTOCOLS.keys()


def test_the_walk_on_the_page_names_every_file_that_the_fit_enters_or_its_room(walks: dict[str, house.Walk]) -> None:
    page = (house.PACKAGE.parent / "docs" / "design.md").read_text()
    told = page.partition("## The walk of a fit")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+(?:/|\.py))`", told)
    rooms = tuple(name for name in named if name.endswith("/"))
    entered = walks["covariance fit"].entered
    assert [file for file in entered if file not in named and not file.startswith(rooms)] == []


def test_a_file_of_a_public_name_needs_no_second_importer() -> None:
    homes, single = {"bigpca.estimators.linear.factor_analysis"}, set(house.one_importer())
    assert all(len(house.importers()[module]) == 1 for module in homes)
    assert not homes & single
    assert "bigpca.kernels.histogram" in single


def test_files_entered_are_counted() -> None:
    walked = house.walk(lambda: fix_signs(np.eye(2)))
    assert dict(walked.entered) == {"solvers/eigh.py": {"fix_signs"}}
    assert walked.once == ["solvers/eigh.py"]
