"""What the package's own source must not do, and the versions it must not be installed with."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("bigpca", "cluster", "examples")
FORBIDDEN = {
    "eval", "exec", "compile", "__import__",
    "os.system", "os.popen", "tempfile.mktemp", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load",
    "shelve.open", "marshal.loads", "pd.read_pickle", "pandas.read_pickle",
}  # fmt: skip
# What Dask itself sent between members of a cluster, which are trusted; an import by a name written there.
ALLOWED = {
    ("bigpca/passes/reading/readers.py", "cloudpickle.loads"),
    ("examples/benchmarks/contenders.py", "__import__"),
}
NEEDED = {"distributed": (2026, 1), "numcodecs": (0, 16, 6), "zarr": (3, 1, 3)}


def dotted(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def calls(source: str) -> list[tuple[str, dict[str | None, str]]]:
    """Every call in a source: the dotted name of what it calls, and its options."""
    return [
        (dotted(node.func), {given.arg: repr(getattr(given.value, "value", "computed")) for given in node.keywords})
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    ]


@cache
def calls_in(path: Path) -> list[tuple[str, dict[str | None, str]]]:
    return calls(path.read_text())


def sins(made: list[tuple[str, dict[str | None, str]]], path: str = "x.py") -> list[str]:
    """Calls in a source that the package must not have."""
    found = []
    for name, options in made:
        if name in FORBIDDEN and (path, name) not in ALLOWED:
            found.append(name)
        if name == "torch.load" and options.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if options.get("shell", "False") != "False":
            found.append(f"{name}(shell=...)")
        if options.get("allow_pickle", "False") != "False":
            found.append(f"{name}(allow_pickle=...)")
        if name in ("np.load", "numpy.load") and "allow_pickle" not in options and not path.startswith("examples"):
            found.append(f"{name} without allow_pickle=False")
        if name.endswith("format.read_array") and options.get("allow_pickle") != "False":
            found.append(f"{name} without allow_pickle=False")
        if name.endswith(("LocalCluster", "SSHCluster")) and "'0.0.0.0'" in options.values():
            found.append(f"{name} on all interfaces")
    return found


SOURCES = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py"))


def test_no_source_evaluates_text_unpickles_or_calls_a_shell() -> None:
    assert len(SOURCES) > 150
    found = {path: sins(calls_in(path), str(path.relative_to(ROOT))) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    ["eval(x)", "exec(x)", "subprocess.run(x, shell=True)", "subprocess.run(x, shell=flag)", "yaml.load(x)",
        "np.load(x)",
     "np.load(x, allow_pickle=True)", "pickle.loads(x)", "cloudpickle.loads(x)", "tempfile.mktemp()", "os.system(x)",
     "np.lib.format.read_array(f)", "torch.load(f)", "LocalCluster(host='0.0.0.0')"],
)  # fmt: skip
def test_each_of_them_is_seen(source: str) -> None:
    assert sins(calls(source))


def test_every_local_cluster_binds_its_dashboard_to_loopback() -> None:
    """Its scheduler is there by default; Dask's default dashboard listens on all interfaces."""
    bound = re.compile(r"""dashboard_address["']?\s*[=:]\s*["']127\.0\.0\.1""")
    started = {path: [name for name, _ in calls_in(path) if name.endswith("LocalCluster")] for path in SOURCES}
    assert sum(map(len, started.values())) >= 3
    for path, names in started.items():
        assert len(bound.findall(path.read_text())) >= len(names), path


def test_no_recipe_listens_on_all_interfaces() -> None:
    texts = [
        path for path in (ROOT / "cluster").rglob("*") if path.suffix in (".sh", ".py", ".yaml", ".ipynb", ".sbatch")
    ]
    assert texts
    for path in texts:
        assert not re.search(r"(host|ip|address)[\"' =:]+0\.0\.0\.0", path.read_text()), path


def test_versions_with_known_holes_are_not_installed() -> None:
    """distributed < 2026.1: HTML injection in the dashboard's proxy; numcodecs < 0.16.6 decodes the pickle codec."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line).groups() for line in declared)  # type: ignore[union-attr]
    for name, needed in NEEDED.items():
        assert tuple(map(int, floors[name].split("."))) >= needed, name
