"""Find drawn mutants in a later state of the code: ``move.py DRAWN BEFORE [AFTER] > MOVED``.

``DRAWN`` has a mutant a line, of the copy ``BEFORE`` of the repository; ``AFTER`` is this one. A fault is the same
where the statement, the piece of it that is replaced and what replaces it read the same, wherever they stand now; the
names of the function and of the file decide between several. A fault whose statement is gone is drawn anew among those
of the same function or folder, and marked ``"redrawn"``.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutations import Mutant, mutants_of

SEED = 16


@dataclass(frozen=True)
class ObjectStore:
    """A mutant by its text: of the statement, of what is replaced by what, and where among equal pieces of it."""

    mutant: Mutant
    statement: str
    before: str
    nth: int
    function: str

    def likeness(self, other: ObjectStore) -> tuple[bool, ...]:
        """What is the same, the weightiest first; nothing where the fault is another one."""
        if (self.before, self.mutant.text) != (other.before, other.mutant.text):
            return ()
        same_file = Path(self.mutant.file).name == Path(other.mutant.file).name
        return self.statement == other.statement, self.function == other.function, self.nth == other.nth, same_file


def within(node: ast.AST, name: str = "") -> Iterator[tuple[ast.stmt, str]]:
    """Give the statements of a tree with the innermost function or class that they stand in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, name
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from within(child, child.name if named else name)


@cache
def places_of(folder: Path, file: str) -> list[ObjectStore]:
    """Return every fault that can be put into a file, by its text."""
    source = (folder / file).read_bytes()
    known = {statement.lineno: (statement, name) for statement, name in within(ast.parse(source))}
    found: dict[tuple[int, str, str], int] = {}
    places = []
    for mutant in mutants_of(folder, file):
        statement, function = known[mutant.statement]
        before = ast.unparse(statement) if not hasattr(statement, "body") else ast.unparse(statement).splitlines()[0]
        piece = " ".join(source[mutant.start : mutant.stop].decode().split())
        key = mutant.statement, piece, mutant.text
        found[key] = found.get(key, -1) + 1
        places.append(ObjectStore(mutant, before, piece, found[key], function))
    return places


def moved(mutant: Mutant, before: Path, after: Path, files: list[str]) -> tuple[Mutant, bool]:
    """Return the mutant as it is now, and whether it is another one in its place."""
    place = next(place for place in places_of(before, mutant.file) if place.mutant == mutant)
    everywhere = [other for file in files for other in places_of(after, file)]
    likest = max(everywhere, key=place.likeness)
    how = place.likeness(likest)
    room = mutant.file.rpartition("/")[0]
    if how and ((how[0] and (how[1] or likest.mutant.file.startswith(room))) or all(how[1:])):
        return likest.mutant, False
    of_room = [other for other in everywhere if other.mutant.file.startswith(room + "/")]
    of_function = [other for other in of_room if other.function == place.function]
    near = [other for other in of_function if other.mutant.kind == mutant.kind] or of_function or of_room
    return random.Random(f"{SEED} {mutant.file} {mutant.start}").choice(near).mutant, True


def main(drawn: Path, before: Path, after: Path = Path()) -> None:
    files = [str(path.relative_to(after)) for path in sorted((after / "bigpca").rglob("*.py"))]
    for row in map(json.loads, drawn.read_text().splitlines()):
        mutant, other = moved(Mutant(**row["fault"]), before, after, files)
        print(json.dumps(row | {"fault": vars(mutant), "redrawn": row.get("redrawn", False) or other}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
