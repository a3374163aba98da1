"""Imports point down only, and only data/, engine/ and passes/ build Dask graphs: read from the source itself."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house import PACKAGE, File, files

# Bottom to top. Longest prefix wins; a tuple is one tier of parts that must not import each other.
TIERS: list[tuple[str, ...]] = [
    ("names", "dask_array", "blas"),
    ("errors",),
    ("parameters",),
    ("arrays", "seeds", "settings"),
    ("records",),
    ("costs",),  # of blocks
    ("forms",),  # of rows, dense ones
    ("csr",),
    ("host",),  # NumPy as a device
    ("devices",),
    ("expressions",),  # of Dask
    ("kernels", "sketches", "solvers"),
    ("rules", "scales"),  # names of solvers
    ("storage",),
    ("engine",),
    ("engine.cluster",),
    ("engine.driver",),  # picks the local or the cluster runner
    ("data",),
    ("passes.reading",),
    ("preprocessing",),  # names of passes.reading
    ("passes.accumulators",),
    ("passes",),  # the verbs
    ("data.stores",),
    ("operators",),
    ("landmarks",),
    ("export",),  # linear maps for other libraries
    ("plots",),  # fitted models are read by their attributes: nothing of estimators is imported
    ("report",),
    ("estimators.shared",),
    ("estimators.linear",),
    ("estimators.pairs",),
    ("estimators.kernel",),
    ("estimators.supervised",),
    ("estimators",),  # merging and loading
    ("",),  # the package itself, whose names are those of the estimators
    ("quality",),
    ("genes",),
    ("cells",),
    ("demo",),
    ("cli",),
    ("__main__",),
]
PURE = (
    "names",
    "errors",
    "parameters",
    "arrays",
    "seeds",
    "blas",
    "csr",
    "settings",
    "host",
    "devices",
    "records",
    "costs",
    "forms",
    "kernels",
    "sketches",
    "solvers",
)
GROUND = ("errors", "settings", "blas", "arrays", "seeds", "records", "storage", "engine")  # of the engine
GRAPHS = ("dask_array", "expressions", "data", "engine", "passes", "estimators", "landmarks")  # may build or take them
HARMLESS_DASK = ("dask.config", "dask.system", "dask.utils")


PARTS = [part for tier in TIERS for part in tier if part]


@cache
def part_of(module: str) -> str:
    """The part of the house that a module (without the leading "bigpca.") belongs to."""
    found = [part for part in PARTS if module == part or module.startswith(part + ".")]
    return max(found, key=len, default="" if module == "" else module)


def tier_of(part: str) -> int:
    for number, tier in enumerate(TIERS):
        if part in tier:
            return number
    raise AssertionError(f"bigpca.{part} has no tier: add it to TIERS, and to DESIGN and CONTRIBUTING")


@pytest.fixture(autouse=True, scope="module")
def _trees_are_freed() -> Iterator[None]:
    """They hold some 150 MiB."""
    yield
    files.cache_clear()


def modules() -> list[tuple[str, File]]:
    return [(file.module.removeprefix("bigpca."), file) for file in files() if file.module != "bigpca"]


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """All modules that statements import; those of a file include what is inside functions and for types."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import: write the absolute name"
            module = node.module or ""
            yield from (
                f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module for alias in node.names
            )


@cache
def is_module(name: str) -> bool:
    if name.partition(".")[0] != "bigpca":
        return name in HARMLESS_DASK or name == "dask.array"
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def problem(importer: str, imported: str) -> str | None:
    """Why ``importer`` (inside bigpca) must not import ``imported``, or None."""
    here = part_of(importer)
    if imported.startswith("dask.array") and here not in ("dask_array", "expressions"):
        return f"bigpca.{importer} imports {imported}: bigpca.dask_array imports it when it is used"
    imported = "dask.array" if imported == "bigpca.dask_array" else imported
    root = imported.partition(".")[0]
    if root == "bigpca":
        there = part_of(imported.removeprefix("bigpca").lstrip("."))
        inside = there.startswith(f"{importer}.")  # a room lists the public names of all its files
        if here != there and tier_of(there) >= tier_of(here) and not inside:
            return f"bigpca.{importer} imports {imported}, which is not below it"
    if here in PURE and root in ("dask", "distributed", "zarr", "dask_ml"):
        return f"bigpca.{importer} imports {imported}: {here} is NumPy and SciPy only"
    graphs = root == "dask" and not imported.startswith(HARMLESS_DASK)
    if graphs and here.partition(".")[0] not in GRAPHS:
        return f"bigpca.{importer} imports {imported}: only data/, engine/ and passes/ build Dask graphs"
    return None


def test_no_import_points_up() -> None:
    found = [problem(name, imported) for name, file in modules() for imported in imports(file.nodes)]
    assert [text for text in found if text] == []


def test_the_engine_imports_the_ground_and_no_kind_of_rows() -> None:
    """Not even inside functions and for types. What it asks of rows and states is in ``engine/interfaces.py``."""
    engine = [(name, file) for name, file in modules() if name.startswith("engine.")]
    inside = [(name, imported) for name, file in engine for imported in imports(file.nodes)]
    assert len(inside) > 100
    allowed = {f"bigpca.{part}" for part in GROUND}
    assert [
        (name, imported)
        for name, imported in inside
        if imported.partition(".")[0] in ("pandas", "xarray", "scipy", "torch", "zarr")
        or (imported.startswith("bigpca.") and ".".join(imported.split(".")[:2]) not in allowed)
    ] == []


# Who may know that rows, or what multiplies them, are on a device: the doors and readers of rows, the row step, kernels
# that prepare rows, solvers, and the sweep, whose tiles are cut otherwise there. States and maps use a Namespace.
KNOW_DEVICES = {
    "data.batches",
    "data.containers",
    "kernels.distance",
    "kernels.dot",
    "passes.accumulators.all_pairs",
    "passes.accumulators.moments",
    "passes.reading.blocks",
    "passes.reading.readers",
    "passes.sweeps",
    "solvers.eigh",
}


def test_only_doors_the_row_step_kernels_and_solvers_know_of_devices() -> None:
    imported = (
        (module, {one.name for one in node.names})
        for module, file in modules()
        for node in file.nodes
        if isinstance(node, ast.ImportFrom) and node.module == "bigpca.devices"
    )
    assert {module for module, names in imported if names & {"Device", "RowsThere"}} == KNOW_DEVICES


# What asks or tells which kind of rows it has. Everything else asks the rows, by ``form_of``, for what they do.
ASKING = {"CsrForm", "SPARSE", "as_csr", "held_csr", "is_csr", "is_sparse", "issparse", "sparse_rows"}
DOORS = {
    "data.batches",
    "data.dask_arrays",
    "data.sources",
    "data.sparse",
    "data.views",
    "estimators.shared.inputs",
    "csr",
}
OTHERS = {"landmarks", "passes.project", "plots.data"}  # doors too: of landmarks, and of chunks of scores


def test_only_doors_ask_which_kind_of_rows_they_are_given() -> None:
    used = {
        name
        for name, file in modules()
        for node in ast.walk(file.tree)
        if (isinstance(node, ast.Name) and node.id in ASKING)
        or (isinstance(node, ast.Attribute) and node.attr in ASKING)
    }
    assert used == DOORS | OTHERS
    storing = {"data.hdf5", "data.sources", "data.zarr_arrays"}  # which find the arrays of a matrix
    assert storing == {
        name
        for name, file in modules()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "bigpca.data.sparse"
        if {"CsrRows", "SparseGroup"} & {one.name for one in node.names}
    }


def test_one_module_takes_urls_apart_and_makes_them() -> None:
    found = {
        name
        for name, file in modules()
        if "://" in file.text
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Constant) and "://" in str(node.value) and " " not in str(node.value)  # no sentence
    }
    assert found == {"storage.files", "engine.cluster.watch"}  # whose function runs where bigpca may be missing


def test_no_two_modules_import_each_other_not_even_inside_functions() -> None:
    """A circle is a set of modules from which nothing leads out of it: what is left once modules
    without imports are gone.
    """
    left = {f"bigpca.{name}": {i for i in imports(file.nodes) if i.startswith("bigpca.")} for name, file in modules()}
    left = {name: found for name, found in left.items() if not is_room(name)}
    while settled := [name for name, found in left.items() if not found & left.keys() - {name}]:
        for name in settled:
            del left[name]
    assert left == {}


def is_room(name: str) -> bool:
    return PACKAGE.parent.joinpath(*name.split(".")).is_dir()


def test_nothing_above_the_passes_cuts_or_maps_dask_arrays() -> None:
    """Nodes of graphs are made in ``data`` and ``passes``: a selection of columns is ``columns_of`` there."""
    building = {"rechunk", "map_blocks", "map_overlap", "from_array"}
    above = ("operators", "landmarks", "estimators")
    assert [
        (name, node.attr)
        for name, file in modules()
        if part_of(name).partition(".")[0] in above and any(word in file.text for word in building)
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute) and node.attr in building
    ] == []


def test_estimators_only_recognise_dask_arrays_and_never_build_graphs() -> None:
    used = {
        (name, node.attr)
        for name, file in modules()
        if part_of(name).partition(".")[0] == "estimators" and "da." in file.text
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "da"
    }
    assert {item for item in used if item[1] != "Array"} == set()


def test_what_dask_keeps_private_of_its_schedulers_and_clients_is_named_here() -> None:
    """Everything else of them is in their documentation."""
    found = {
        (name, node.attr)
        for name, file in modules()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[a-z]\w+", node.attr)
        if isinstance(node.value, ast.Name) and node.value.id in ("client", "clients", "dask_scheduler", "dask_worker")
    }
    assert found == {
        ("engine.local", "_global_clients"),  # all that a forked process inherits: Dask tells the current one
        ("engine.cluster.watch", "_comms"),  # an earlier connection: events and plugins lose sight of it
        # A client that was told that its connection ends does not make it again.
        *(("engine.cluster.watch", name) for name in ("_handle_report", "_handle_report_task", "_reconnect")),
        ("engine.cluster.tasks", "_release_key"),  # whose futures live on in a traceback
    }


def test_dask_ml_is_never_imported_at_the_top_of_a_module() -> None:
    top = [
        name
        for name, file in modules()
        for imported in imports(file.tree.body)
        if imported.partition(".")[0] == "dask_ml"
    ]
    assert top == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("solvers.eigh", "bigpca.kernels.rbf"),
        ("solvers.eigh", "bigpca.dask_array"),
        ("data.sources", "dask.array"),
        ("data.sources", "bigpca.passes.rows"),
        ("data.sources", "bigpca.data.stores"),
        ("passes.rows", "bigpca.data.stores"),
        ("passes.rows", "bigpca"),
        ("estimators.pca", "bigpca.cli"),
        ("quality.axes", "bigpca.cli.diagnosis"),
        ("plots.numbers", "bigpca.estimators.shared.transformer"),
        ("cli.fitting", "bigpca.dask_array"),
    ],
)
def test_an_upward_arrow_is_seen(importer: str, imported: str) -> None:
    assert problem(importer, imported) is not None


ROOMS = [path.parent for path in sorted(PACKAGE.rglob("__init__.py")) if path.parent != PACKAGE]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(PACKAGE)))
def test_the_map_of_a_folder_lists_each_of_its_files_and_folders_and_no_other(room: Path) -> None:
    """A map is the list in the docstring of ``__init__.py``: "- ``file``, ``folder/``  what they are"."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    lines = re.findall(r"^- ((?:``[\w/]+``(?:, )?)+)", text, re.MULTILINE)
    files = [path.stem for path in room.glob("*.py") if not path.stem.startswith("__")]
    folders = [f"{path.parent.name}/" for path in room.glob("*/__init__.py")]
    assert sorted(re.findall(r"``([\w/]+)``", " ".join(lines))) == sorted(files + folders)
    for path in re.findall(r"``((?:tests|bigpca|\w+/)[\w/]+\.py)``", text):  # other files that it names
        places = (PACKAGE.parent, PACKAGE, room)
        assert any((place / path).is_file() for place in places), path
