"""Measure the house: how deep its files are, how many of them a fit enters, which import which.

``python tests/house.py > tests/house.json`` writes every figure, which ``tests/test_house.py`` then holds. Shapes are
read from the source with ast; a walk is counted with ``sys.setprofile`` on the second of two equal calls, so that
imports and caches do not count. Lines are those that the formatter writes where nothing tells it to skip any.
"""

import ast
import gc
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "bigpca"
NUMERICAL = ("solvers", "operators", "passes/accumulators", "kernels", "sketches", "landmarks")
FAMILIES = ("estimators/linear", "estimators/kernel", "estimators/supervised")
FITS = re.compile(r"estimators/(linear|kernel|supervised)/(.*_fit|krylov|sketch|landmarks|fits|spectrum)\.py")
DIRECTIVE = re.compile(r"#\s*(noqa|type:|pragma|mypy:|fmt:|ruff:)")
STRING_OR_COMMENT = re.compile(r'''"""(?s:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#.*)''')


class File:
    """One file of the package: its tree, and its lines of code, imports and comments."""

    def __init__(self, path: Path, package: Path = PACKAGE) -> None:
        self.path = path.relative_to(package)
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.nodes = list(statements(self.tree))
        self.module = ".".join(["bigpca", *self.path.with_suffix("").parts]).removesuffix(".__init__")
        docstrings = {
            line
            for node in self.nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        lines = self.text.splitlines()
        self.comments: list[tuple[int, str]] = []  # those that explain: on their own line, or longer than a label

        def without_comments(found: re.Match[str]) -> str:
            comment = found["comment"]
            if comment is None:
                return re.sub("^.*", '""', found[0], flags=re.MULTILINE)  # each line of a string is one of code
            number = self.text.count("\n", 0, found.start()) + 1
            if not DIRECTIVE.match(comment) and (lines[number - 1].lstrip() == comment or len(comment) > 20):
                self.comments.append((number, comment))
            return ""

        shown = STRING_OR_COMMENT.sub(without_comments, self.text).splitlines()
        self.code = {number for number, line in enumerate(shown, start=1) if line.strip()} - docstrings
        self.imports = {
            line
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or 0) + 1)
        }

    @property
    def room(self) -> str:
        return str(self.path.parent)


def statements(node: ast.AST) -> Iterator[Any]:
    """Yield a node and the statements inside it, at any depth; no expressions, which are most nodes of a tree."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield from statements(child)


@cache
def files() -> tuple[File, ...]:
    gc.disable()  # it would look at all trees again and again
    try:
        return tuple(File(path) for path in sorted(PACKAGE.rglob("*.py")))
    finally:
        gc.enable()


@cache
def importers() -> dict[str, frozenset[str]]:
    """For each module of the package, the modules that import it, anywhere in a file."""
    modules = {file.module for file in files()}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in files():
        for node in file.nodes:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                members = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else node.module or "" for name in members]
            else:
                continue
            for name in names:
                if name in modules and name != file.module:
                    found[name].add(file.module)
    return {module: frozenset(found[module]) for module in sorted(modules)}


def shapes() -> dict[str, float]:
    """Return sizes and shares of the package."""
    code, imports = sum(len(file.code) for file in files()), sum(len(file.imports) for file in files())
    explained = [file for file in files() if str(file.path).startswith(NUMERICAL) or FITS.match(str(file.path))]
    single = one_importer()
    return {
        "files": len(files()),
        "code lines": code,
        "code lines as the formatter writes them": formatted_lines(),
        "lines that the formatter skips": sum(file.text.count("# fmt: skip") for file in files()),
        "imports, % of code lines": round(100 * imports / code, 1),
        "files with one importer": len(single),
        "protocols": len(protocols()),
        "functions named self outside classes": len(selfish()),
        "comments per 100 code lines where numbers are made": round(
            100 * sum(len(file.comments) for file in explained) / sum(len(file.code) for file in explained), 1
        ),
        "numerical functions of 12 lines and more without a comment": len(unexplained()),
        "floors of data": floors("data"),
        "arrows of data": arrows("data"),
        "members of the largest class": max(map(members, classes())),
        "members of PCA with its bases": sum(members(node) for node in own_bases("PCA")),
        "members of Rows": max(members(node) for node in classes() if node.name == "Rows"),
        "fields of Rows": max(len(fields(node)) for node in classes() if node.name == "Rows"),
        "class names that mean two things": sum(n > 1 for n in Counter(node.name for node in classes()).values()),
        "records of cost": sum(bool(COSTS.fullmatch(node.name)) for node in classes()),
        "constants after the first definition, per file": round(late_constants() / len(files()), 2),
        "aliases of Any": sum(len(re.findall(r"^\w+(?:: TypeAlias)? = Any\b", file.text, re.M)) for file in files()),
    }


COSTS = re.compile(r"Work|Speed|Times|PassCost|PassPlan|SweepPlan|SolveCost|Resources|Plan|Loops")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def classes() -> list[ast.ClassDef]:
    return [node for file in files() for node in file.nodes if isinstance(node, ast.ClassDef)]


def fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [part for part in node.body if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.dump(part)]


def members(node: ast.ClassDef) -> int:
    """Methods and fields that a class defines itself."""
    return sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign) for part in node.body)


def own_bases(name: str) -> list[ast.ClassDef]:
    """A class of the package and the classes of the package that it inherits from."""
    known = {node.name: node for node in classes()}
    found, names = [], [name]
    for one in names:
        found.append(known[one])
        bases = [ast.unparse(base).partition("[")[0] for base in known[one].bases]
        names += [base for base in bases if base in known and base not in names]
    return found


def late_constants() -> int:
    """Constants that stand below the first class or function of their file."""
    late = 0
    for file in files():
        defined = False
        for node in file.tree.body:
            defined |= isinstance(node, ast.ClassDef | ast.FunctionDef)
            named = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            late += defined and any(isinstance(one, ast.Name) and CONSTANT.fullmatch(one.id) for one in named)
    return late


def formatted_lines() -> int:
    """Lines of code where the formatter skips none: lines that are joined by hand gain nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(PACKAGE, f"{folder}/bigpca", ignore=shutil.ignore_patterns("__pycache__")))
        for path in copy.rglob("*.py"):
            path.write_text(path.read_text().replace("  # fmt: skip", ""))
        shutil.copy(PACKAGE.parent / "pyproject.toml", folder)
        subprocess.run([sys.executable, "-m", "ruff", "format", "-q", folder], check=True)
        return sum(len(File(path, copy).code) for path in copy.rglob("*.py"))


def one_importer() -> list[str]:
    """Modules that exactly one other imports, but for packages and homes of public names, which users import."""
    from bigpca import HOMES

    other = {file.module for file in files() if file.path.name == "__init__.py"} | HOMES.keys()
    return [module for module, users in importers().items() if len(users) == 1 and module not in other]


def protocols() -> list[str]:
    return [
        f"{file.path}:{node.name}"
        for file in files()
        for node in file.nodes
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


def selfish() -> list[str]:
    """Functions of modules whose first parameter is called self."""
    return [
        f"{file.path}:{node.name}"
        for file in files()
        for node in file.tree.body
        if isinstance(node, ast.FunctionDef)
        and (node.args.posonlyargs + node.args.args)[:1]
        and (node.args.posonlyargs + node.args.args)[0].arg == "self"
    ]


def unexplained() -> list[str]:
    """Functions of the numerical rooms with 12 lines of work and more, and no comment among them.

    Lines that raise errors do not count, and constructors of estimators do not: these assign parameters.
    """
    found = []
    for file in files():
        if not str(file.path).startswith(NUMERICAL + FAMILIES):
            continue
        explained = {line for line, _ in file.comments}
        for node in file.nodes:
            if isinstance(node, ast.FunctionDef):
                body = [part for part in node.body if not is_docstring(part)]
                lines = set(range(body[0].lineno, (node.end_lineno or 0) + 1)) if body else set()
                raised = {
                    line
                    for part in statements(node)
                    if isinstance(part, ast.Raise)
                    for line in range(part.lineno, (part.end_lineno or 0) + 1)
                }
                work = file.code & lines - raised
                if len(work) >= 12 and node.name != "__init__" and not explained & lines:
                    found.append(f"{file.path}:{node.name}")
    return found


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def inside(room: str) -> dict[str, set[str]]:
    """For each module of a folder, the modules of the same folder (and its folders) that it imports."""
    here = f"bigpca.{room}."
    return {
        module: {other for other, users in importers().items() if other.startswith(here) and module in users}
        for module in importers()
        if module.startswith(here)
    }


def arrows(room: str) -> int:
    return sum(len(found) for found in inside(room).values())


def floors(room: str) -> int:
    """The longest chain of imports inside a folder, in files."""
    below = inside(room)

    @cache
    def height(module: str) -> int:
        return 1 + max((height(other) for other in below[module]), default=0)

    return max(map(height, below))


# What a function names if it knows of a kind of rows or a promise, and the files where that is at home.
KINDS = {
    "sparse rows": (r"sparse|csr", r"csr\.py|data/sparse\.py"),
    "devices": (r"device|RowsThere|^there$|staying", r"devices\.py"),
    "weights": (r"weight", r"data/weights\.py"),
    "missing values": (r"nan_policy|omit|fill|gaps", r"observed_columns\.py"),
    "grids": (r"grid|is_labelled|DataArray|^labels$", r"data/grids\.py|shared/labelled\.py"),
    "batches": (r"batch|open_ended|in_order|^once$", r"data/batches\.py"),
    "sides and covariates": (r"side|covariate|^given$|widths", r"estimators/pairs/|passes/(side_by_side|residuals)"),
    "groups and folds": (r"group(?!s?$)|folds?$|FoldStates|^groups$", r"accumulators/folds\.py"),
    "objects": (r"object_|is_object|ObjectStore$|^place$|requests|claim", r"storage/(objects|places|requests)\.py"),
    "changed input": (r"stamp|unchanged|looks?$|comparing|InputChanged", r"storage/files\.py"),
    "cost and plan": (r"cost|_bytes$|flops|prices?$|peak|^plan|loops", r"planning\.py"),
    "rounding": (r"rounding|precision|noise|_eps$|refin|again", r"solvers/moments\.py"),
}


def footprints() -> dict[str, int]:
    """For each kind of rows and promise, the functions away from its home that branch on it, also by a local name."""
    found: Counter[str] = Counter()
    for file in files():
        own = [(kind, re.compile(said)) for kind, (said, home) in KINDS.items() if not re.search(home, str(file.path))]
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                asked = asked_by(node)
                found.update(kind for kind, said in own if any(map(said.search, asked)))
    return {f"footprint: {kind}": found[kind] for kind in KINDS} | {"footprint: sum": found.total()}


def asked_by(function: ast.AST) -> set[str]:
    """The names that a function tests, and those in what it assigns to a local name that it tests."""
    asked = {name for node in ast.walk(function) for test in tests_of(node) for name in names_in(test)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, SAYS):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id in asked for one in targets):
                asked |= set(names_in(node.value))
    return asked


SAYS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call, ast.Attribute)


def tests_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    return [node] if isinstance(node, ast.BoolOp) else [node.subject] if isinstance(node, ast.Match) else []


def names_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        name = getattr(one, {"Name": "id", "Attribute": "attr"}.get(type(one).__name__, "arg"), None)
        if isinstance(name, str):
            yield name


def reaches() -> dict[str, int]:
    """For some kinds of rows, the functions away from home that a PCA of them runs otherwise, or alone."""
    import dask
    import dask.array as da
    import numpy as np
    import scipy.sparse as sp

    import bigpca as bp

    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((300, 6)) * (rng.random((300, 6)) < 0.5), rng.standard_normal((300, 2))

    def fitted(rows: Any, **beside: Any) -> dict[tuple[str, str], frozenset[int]]:
        return lines_run(lambda: bp.PCA(2, solver="covariance").fit(rows, **beside))

    with dask.config.set(scheduler="synchronous"):
        plain = fitted(X)
        kinds = {
            "sparse rows": (fitted(sp.csr_array(X)), r"csr\.py|data/sparse\.py"),
            "weights": (fitted(X, sample_weight=np.arange(300) % 2 + 1.0), r"data/weights\.py"),
            "covariates": (fitted(X, covariates=Z), r"estimators/pairs/|passes/(side_by_side|residuals)"),
            "Dask arrays": (fitted(da.from_array(X, chunks=(100, 6))), r"passes/graphs\.py|data/dask_arrays\.py"),
        }
    return {
        f"reach: {kind}": sum(plain.get(key) != lines and not re.match(home, key[0]) for key, lines in run.items())
        for kind, (run, home) in kinds.items()
    }


def lines_run(call: Callable[[], Any]) -> dict[tuple[str, str], frozenset[int]]:
    """The lines of each function of the package that the third of three equal calls runs."""
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return None
        own = found[os.path.relpath(code.co_filename, PACKAGE), code.co_qualname]

        def line(frame: FrameType, event: str, _: Any) -> Any:
            own.add(frame.f_lineno)
            return line

        return line(frame, event, None)

    call()
    call()
    before = sys.gettrace()  # of coverage
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]
    return {key: frozenset(lines) for key, lines in found.items()}


INLINE = re.compile(r"<(genexpr|listcomp|dictcomp|setcomp)>")  # no functions, and from Python 3.12 on often no frames
READS = re.compile(r"passes/reading/readers\.py:\w+\.read|engine/group\.py:(read_ahead|begin_read)")  # or a thread


class Walk:
    """The files of the package that a call enters, and the functions entered in each; how many before the first row."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.before: int | None = None  # functions of the package that are entered before rows are read
        self.depth = 0  # the most that are entered at a time until then
        self.changes = 0  # of file, from one function that is entered first to the next one, until then
        self._open = 0
        self._file = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if INLINE.fullmatch(code.co_name):
            return
        first = event == "call" and code not in self.codes
        if event == "call":
            self.codes.add(code)
        if self.before is not None or event not in ("call", "return") or not code.co_filename.startswith(str(PACKAGE)):
            return
        if first:
            self.changes, self._file = self.changes + (self._file != code.co_filename), code.co_filename
        self._open += 1 if event == "call" else -1
        self.depth = max(self.depth, self._open)
        if READS.fullmatch(f"{os.path.relpath(code.co_filename, PACKAGE)}:{code.co_qualname}"):
            self.before = sum(map(len, self.entered_now().values()))

    def entered_now(self) -> dict[str, set[str]]:
        found: defaultdict[str, set[str]] = defaultdict(set)
        for code in self.codes:
            if code.co_filename.startswith(str(PACKAGE)):
                found[os.path.relpath(code.co_filename, PACKAGE)].add(code.co_qualname)
        return found

    @cached_property
    def entered(self) -> dict[str, set[str]]:
        return self.entered_now()

    @property
    def once(self) -> list[str]:
        return sorted(file for file, functions in self.entered.items() if len(functions) == 1)


def walk(call: Callable[[], Any]) -> Walk:
    """The walk of a call in this thread (fits run with Dask's synchronous scheduler)."""
    found = Walk()
    call()
    gc.collect()  # what other tests left ends before, and not within
    gc.disable()
    sys.setprofile(found)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def walks() -> Iterator[tuple[str, Walk]]:
    """Name and walk of the calls that most users make, on 300 x 20 rows."""
    import dask
    import numpy as np
    import pandas as pd

    import bigpca as bp
    from bigpca.kernels import RBF

    rng = np.random.default_rng(0)
    rows, keys = rng.standard_normal((300, 20)), [f"row {i}" for i in range(300)]
    labels = pd.Series(rng.integers(0, 3, 300), index=keys)[::-1]
    with tempfile.TemporaryDirectory() as folder, dask.config.set(scheduler="synchronous"):
        path, keyed = f"{folder}/plain.zarr", f"{folder}/keyed.zarr"
        bp.ingest(rows, path)
        bp.ingest(rows, keyed, keys=keys)
        pca = bp.PCA(8, solver="covariance").fit(path)
        outputs = (f"{folder}/scores {i}.zarr" for i in range(9))
        calls: dict[str, Callable[[], Any]] = {
            "covariance fit": lambda: bp.PCA(8, solver="covariance").fit(bp.open(path)),
            "krylov fit": lambda: bp.PCA(8, solver="krylov").fit(bp.open(path)),
            "Nystrom fit": lambda: bp.NystromKernelPCA(8, kernel=RBF(), n_landmarks=50).fit(rows),
            "Fisher fit by key": lambda: bp.FisherDiscriminantAnalysis(2).fit(keyed, bp.data.by_key(labels, keyed)),
            "CCA fit": lambda: bp.CCA(3).fit(bp.open(path), rows[:, :5]),
            "transform in memory": lambda: pca.transform(rows),
            "transform to a store": lambda: pca.transform(bp.open(path), out=next(outputs)),
        }
        for name, call in calls.items():
            yield name, walk(call)


def loaded() -> int:
    """Modules of the package that a process has imported once it names ``bigpca.PCA``: in a fork that forgets them."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            for name in own_modules():
                del sys.modules[name]
            importlib.import_module("bigpca").PCA  # noqa: B018
            os.write(writing, str(len(own_modules())).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as found:
        os.waitpid(child, 0)
        return int(found.read())


def own_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "bigpca"]


def figures(walked: Mapping[str, Walk]) -> dict[str, float]:
    """Return every figure of the house."""
    found: dict[str, float] = {**shapes(), **footprints(), **reaches(), "modules loaded by bigpca.PCA": loaded()}
    for name, taken in walked.items():
        found[f"{name}: files"] = len(taken.entered)
        found[f"{name}: files entered for one function"] = len(taken.once)
        if taken.before is not None:
            found[f"{name}: functions before the first row"] = taken.before
            found[f"{name}: depth before the first row"] = taken.depth
            found[f"{name}: changes of file before the first row"] = taken.changes
    return found


if __name__ == "__main__":
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "BIGPCA_SOLVE_THREADS": "1"}  # as in tests
    print(json.dumps(figures(dict(walks())), indent=1))
