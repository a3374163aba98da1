"""Everything shown runs: blocks of the README and of the site's pages, and doctests (examples: test_examples.py);
what is stated twice is stated alike.
"""

import doctest
import importlib
import pkgutil
import re
import runpy
import shlex
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bigpca
from bigpca.cli.output import MEANINGS
from tests.cli.running import run
from tests.data.plink_files import save_bed

ROOT = Path(__file__).resolve().parent.parent
TAB = re.compile(r"^:::\{tab-item\} (\w+)\n(.*?)^:::$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INCLUDED = re.compile(r"^ *```\{literalinclude\} (\S+)\n *:pyobject: (\S+)", re.MULTILINE)
OPTIONAL = {
    "apsw",
    "sqlite_vec",
    "faiss",
    "onnx",
    "onnxruntime",
    "torch",
}  # of a few blocks, which run where it is installed

README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if BLOCK.search(page.read_text())),
]
LANE = "--dist loadfile -m"
TESTS = f"-n 3 {LANE} 'not cluster' && .venv/bin/python -m pytest -q -n 4 {LANE} cluster"
MODULES = sorted(module.name for module in pkgutil.walk_packages(bigpca.__path__, "bigpca."))


def blocks(language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(README) if kind == language]


def in_tab(text: str, label: str) -> str:
    """Return a page as readers see it who choose the tabs of this label."""
    return TAB.sub(lambda tab: tab[2] if tab[1] == label else "", text)


def run_block(language: str, code: str, page: str, names: dict[str, object]) -> None:
    if language == "python":
        try:
            exec(compile(code, page, "exec"), names)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                raise
        return
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("bigpca "):
            result = run(*shlex.split(line, comments=True)[1:])
            assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page != PAGES[0]:  # whose reports have their figures
        request.getfixturevalue("undrawn")
    text = page.read_text()
    for label in sorted({label for label, _ in TAB.findall(text)} or {"page"}):
        folder = tmp_path / label
        folder.mkdir()
        monkeypatch.chdir(folder)
        names: dict[str, object] = {}
        for language, code in BLOCK.findall(in_tab(text, label)):
            run_block(language, code, page.name, names)


def write_your_data(folder: Path) -> None:
    """Write the files that the table of the README's commands names, as their libraries write them."""
    rng = np.random.default_rng(0)
    (folder / "features").mkdir()
    rows = rng.standard_normal((200, 60))
    for shard in range(2):
        np.save(folder / f"features/{shard}.npy", rows.astype("f4") * 2.0**shard)
    pd.DataFrame(rows[:, :12]).add_prefix("x").to_parquet(folder / "table.parquet")
    save_bed(folder / "chr22.bed", np.where(rows > 2.5, np.nan, rng.integers(0, 3, rows.shape)))
    if find_spec("anndata"):
        cells = import_module("anndata").AnnData(sparse.csr_matrix(rng.poisson(1.0, rows.shape).astype("f4")))
        cells.write_h5ad(folder / "cells.h5ad")
    if find_spec("netCDF4"):
        field = import_module("xarray").DataArray(rows.reshape(200, 6, 10), dims=("time", "lat", "lon"), name="sst")
        field.to_netcdf(folder / "sst.nc")


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")  # of missing calls
@pytest.mark.parametrize("command", re.findall(r"^\| .* \| `(bigpca fit .*)` \|$", README, flags=re.MULTILINE))
def test_your_data_are_two_commands_from_a_page(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    write_your_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    if not list(tmp_path.glob(shlex.split(command)[2])):
        pytest.skip("the library that writes this file is not installed")
    for line in (command, "bigpca report m.zarr --scores s.zarr"):
        result = run(*shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").exists()


def test_readme_has_exactly_two_commands_that_set_up() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if "venv" in line]
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv .venv && .venv/bin/pip install -q '.[") for line in lines)
    assert lines[0].endswith(".venv/bin/bigpca demo")
    assert lines[1].endswith(TESTS)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    pattern = re.search(r"grep -m 1 '(.*)' README.md", (ROOT / ".ci" / "run").read_text())
    assert pattern is not None
    found = [line for line in README.splitlines() if re.match(pattern[1], line)]
    assert found == [line for block in blocks("sh") for line in block.splitlines() if line.endswith(TESTS)]


def test_a_package_index_shows_no_link_into_the_repository_and_the_sdist_has_what_is_named_instead() -> None:
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    linked = re.findall(r"\]\((?!https?:)([^)]+)\)", README)
    assert len(linked) > 10
    kept = tuple(f"{name.removeprefix('/')}/" for name in hatch["build"]["targets"]["sdist"]["include"])
    assert [name for name in linked if not (ROOT / name).exists() or not f"{name}/".startswith(kept)] == []
    shown = README
    for one in hatch["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(one["pattern"], one["replacement"], shown)
    assert "](" not in shown
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert [name for name in linked if f"`{name}`" not in shown] == pictures


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited is not None
    assert (bigpca.__version__, cited[1]) == (declared, declared)


def test_the_recipe_needs_what_the_package_needs() -> None:
    """By the library that builds conda's packages: it rejects keys that a recipe does not have."""
    recipes = pytest.importorskip("rattler_build").Stage0Recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with pytest.raises(Exception, match="nonsense"):
        recipes.from_yaml("package: {name: x, version: 1}\nnonsense: 1")
    (variant,) = recipes.from_yaml((ROOT / "recipe/recipe.yaml").read_text()).render()
    recipe = variant.recipe.to_dict()
    needed = [re.sub(r"^([\w-]+)(?:\[\w+\])?", r"\1 ", one) for one in ("python>=3.11", *project["dependencies"])]
    assert [one.replace("dask-core", "dask") for one in recipe["requirements"]["run"]] == needed
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}


def test_operations_lists_the_exit_codes_that_help_lists() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]


def test_troubleshooting_lists_messages_that_exist() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "bigpca").rglob("*.py"))
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    listed = re.findall(r"^\| `(.*?)` \| ", page, re.MULTILINE)
    assert len(listed) > 10
    assert [message for message in listed if message not in sources] == []


@pytest.mark.parametrize(("signature", "found"), [("(n_components=None, *, tol=0.1)", 0), ("(*args, **parameters)", 1)])
def test_the_check_of_the_site_finds_lost_signatures(signature: str, found: int, tmp_path: Path) -> None:
    lost_signatures = runpy.run_path(str(ROOT / "docs" / "check.py"))["lost_signatures"]
    page = tmp_path / "generated" / "bigpca.PCA.html"
    page.parent.mkdir()
    fields = "<dl><dt><strong>n_components</strong></dt><dt><strong>tol, *</strong></dt></dl>"
    page.write_text(
        f'<dt class="sig sig-object py">class <b>PCA</b>{signature}</dt><dt class="field-odd">Parameters</dt>{fields}'
    )
    assert len(lost_signatures(tmp_path)) == found


def test_the_pictures_of_the_site_are_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()) < 300_000


@pytest.mark.parametrize("name", MODULES)
def test_doctests_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    with np.printoptions(legacy=False):
        failed, _ = doctest.testmod(module, extraglobs={"np": np, "bp": bigpca})  # taken as imported
    assert failed == 0


def test_code_that_a_page_includes_exists() -> None:
    pages = [(page, *found) for page in (ROOT / "docs").glob("*.md") for found in INCLUDED.findall(page.read_text())]
    assert len(pages) > 5
    for page, path, name in pages:
        module = (page.parent / path).resolve().relative_to(ROOT).with_suffix("")
        assert pkgutil.resolve_name(f"{'.'.join(module.parts)}:{name}"), (page, name)
