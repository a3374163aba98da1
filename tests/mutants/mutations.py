"""Small faults that can be put into a source file: each is one replaced piece of its text."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,), ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,), ast.And: (ast.Or,),
    ast.Or: (ast.And,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,),
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any"}


@dataclass(frozen=True, order=True)
class Mutant:
    """One fault: the text from ``start`` to ``stop``, byte offsets in ``file``, becomes ``text``."""

    file: str
    line: int
    start: int
    stop: int
    text: str
    kind: str
    statement: int  # the first line of the statement

    def source(self, folder: Path) -> bytes:
        """Return the file with the fault in it."""
        whole = (folder / self.file).read_bytes()
        return whole[: self.start] + self.text.encode() + whole[self.stop :]

    def shown(self, folder: Path) -> str:
        """Return what is replaced by what, in one line."""
        before = (folder / self.file).read_bytes()[self.start : self.stop].decode()
        return f"{' '.join(before.split())} -> {self.text}"


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """Give (what is replaced, by what, the kind) of one node."""
    if isinstance(node, ast.BinOp):
        for kind in OPERATORS.get(type(node.op), ()):
            yield node, ast.BinOp(node.left, kind(), node.right), "arithmetic"
    elif isinstance(node, ast.AugAssign):
        for kind in OPERATORS.get(type(node.op), ()):
            yield node, ast.AugAssign(node.target, kind(), node.value), "arithmetic"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in OPERATORS.get(type(node.ops[0]), ()):
            yield node, ast.Compare(node.left, [kind()], node.comparators), "comparison"
    elif isinstance(node, ast.BoolOp):
        yield node, ast.BoolOp(OPERATORS[type(node.op)][0](), node.values), "condition"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield node, node.operand, "condition" if isinstance(node.op, ast.Not) else "arithmetic"
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, ast.UnaryOp(ast.Not(), node.test), "condition"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield node, ast.Constant(not node.value), "constant"
        elif isinstance(node.value, int):
            yield node, ast.Constant(node.value + 1), "off by one"
        elif isinstance(node.value, float):
            yield node, ast.Constant(2 * node.value or 1.0), "constant"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, ast.Pass(), "dropped call"
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in SWAPPED:
            text = ast.unparse(node.func)
            yield node.func, ast.Name(text.removesuffix(name) + SWAPPED[name]), "swapped call"
        elif len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred):
            yield node, node.args[0], "dropped call"


def _parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """Give the nodes of a statement that are code that runs there: no inner statements, annotations or f-strings."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "type_params", "decorator_list") or isinstance(node, ast.JoinedStr):
                continue
            children = value if isinstance(value, list) else [value]
            pending.extend(c for c in children if isinstance(c, ast.AST) and not isinstance(c, ast.stmt))


def mutants_of(folder: Path, file: str) -> list[Mutant]:
    """Return every fault that can be put into a file, in order."""
    text = (folder / file).read_text(encoding="utf-8")
    starts = [0]
    for row in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found = set()
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, ast.stmt) or isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.Import):
            continue
        for node in _parts(statement):
            for old, new, kind in _replacements(node):
                replaced = ast.unparse(ast.fix_missing_locations(new))
                replaced = replaced if isinstance(old, ast.stmt | ast.Constant) else f"({replaced})"
                start = starts[old.lineno - 1] + old.col_offset
                stop = starts[old.end_lineno - 1] + old.end_col_offset
                found.add(Mutant(file, old.lineno, start, stop, replaced, kind, statement.lineno))
    return sorted(found)
