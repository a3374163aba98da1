"""The API page lists every public name; their docstrings give each parameter with its default, and what is returned."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import bigpca
from bigpca.estimators.shared.transformer import Estimator
from bigpca.estimators.supervised.roweis_map import RoweisMap

REFERENCE = Path(__file__).parents[1] / "docs" / "api.md"
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
BETWEEN_ROOMS = {  # exported for other modules of the package: they restore models, and code strings
    "bigpca.kernels.kernel_from",
    "bigpca.kernels.string_codes",
    "bigpca.sketches.sketch_from",
}


def listed() -> Iterator[str]:
    """Yield the names that the API page lists, with their modules."""
    module = ""
    for line in REFERENCE.read_text().splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   [\w.]+", line):
            yield f"{module}.{line.strip()}"


def public() -> Iterator[str]:
    """Yield the public names of the package and of its public modules."""
    yield from (f"bigpca.{name}" for name in bigpca.__all__ if name not in bigpca.MODULES)
    for module in map(import_module, (f"bigpca.{name}" for name in bigpca.MODULES)):
        functions = [name for name, one in vars(module).items() if inspect.isfunction(one) and name[0] != "_"]
        own = [name for name in functions if vars(module)[name].__module__ == module.__name__]
        names = getattr(module, "__all__", own)
        yield from (f"{module.__name__}.{name}" for name in names)


def public_callables() -> Iterator[tuple[str, Any]]:
    """Yield public functions, classes that users make, and the methods of estimators, by qualified name."""
    for one in map(resolve_name, listed()):
        if inspect.isfunction(one) or (inspect.isclass(one) and not issubclass(one, Exception)):
            yield one.__qualname__, one
        if inspect.isclass(one) and issubclass(one, (Estimator, RoweisMap)):
            for name in filter(lambda name: not name.startswith("_"), dir(one)):
                found = inspect.getattr_static(one, name)
                method = inspect.unwrap(getattr(found, "fn", found))
                if inspect.isfunction(method) and method.__module__.startswith("bigpca"):
                    yield method.__qualname__, method


def sections_of(documented: Any) -> dict[str, str]:
    """Return the sections of a docstring by their headings."""
    _, *parts = HEADING.split(inspect.cleandoc(documented.__doc__ or ""))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def entries_of(section: str) -> dict[str, str]:
    """Return the text of each name that a section lists."""
    parts = re.split(r"^(?=\S)", section, flags=re.MULTILINE)
    heads = [(part.partition("\n")[0].partition(" : ")[0], part) for part in parts if part.strip()]
    return {name.strip(" *"): part for head, part in heads for name in head.split(",")}


CALLABLES = dict(public_callables())


def test_the_api_page_lists_every_public_name() -> None:
    missing = set(public()) - set(listed()) - BETWEEN_ROOMS
    assert missing == set(), f"list them in docs/api.md: {sorted(missing)}"


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_described_with_its_default_and_so_is_what_is_returned(name: str) -> None:
    documented = CALLABLES[name]
    sections = sections_of(documented)
    own = sections.get("Parameters", "") + sections.get("Attributes", "") * inspect.isclass(documented)
    described = entries_of(own)
    faults = []
    made = () if inspect.isabstract(documented) else inspect.signature(documented).parameters.values()
    for parameter in made:
        text = described.get(parameter.name)
        if text is None:
            faults += [parameter.name] * (parameter.name not in ("self", "cls"))
        elif parameter.default is not parameter.empty and not re.search("[dD]efault|optional", text):
            faults.append(f"default of {parameter.name}")
    if inspect.isfunction(documented) and inspect.signature(documented).return_annotation != "None":
        faults += ["Returns"] * (not {"Returns", "Yields"} & set(sections))
    assert not faults


LITERAL = r"(?:None|True|False|\"[^\"]*\"|\([^)]*\)|-?\d(?:[\d.e+-]*\d)?)(?![\w.]*\w)"
STATED = re.compile(rf"\b[Dd]efaults?:? ({LITERAL}(?:(?:, | and ){LITERAL})*)")
REFERENCE_OF = re.compile(r"As (?:in|for) :(?:class|func):`~?([\w.]+)`")


def stated_defaults(documented: Any, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield parameters that have a default, with the one that their entry states, or that of what it refers to."""
    sections = sections_of(documented)
    own = sections.get("Parameters", "") + sections.get("Attributes", "") * inspect.isclass(documented)
    for text in dict.fromkeys(entries_of(own).values()):
        heads = text.partition("\n")[0].partition(" : ")[0].split(",")
        names, flat = [one for head in heads if (one := head.strip(" *")) in known], " ".join(text.split())
        if found := STATED.search(flat):
            values = [ast.literal_eval(one) for one in re.findall(LITERAL, found[1])]
            yield from zip(names, values * len(names) if len(values) == 1 else values, strict=True)
        elif refers := REFERENCE_OF.search(flat):
            where = refers[1] if "." in refers[1] else f"{documented.__module__}.{refers[1]}"
            others = inspect.signature(resolve_name(where)).parameters
            yield from ((name, others[name].default) for name in names if name in others)


@pytest.mark.parametrize("name", CALLABLES)
def test_a_default_that_a_docstring_states_is_that_of_the_signature(name: str) -> None:
    documented = CALLABLES[name]
    made = {} if inspect.isabstract(documented) else inspect.signature(documented).parameters
    known = {one: own.default for one, own in made.items() if own.default is not own.empty}
    wrong = {one: value for one, value in stated_defaults(documented, known) if value != known[one]}
    assert not {one: value for one, value in wrong.items() if f'"{value}"' not in repr(known[one])}


# Objects of libraries that have no types, or that are no dependency; keywords that a library takes; kernels' operands.
UNTYPED = {"model", "models", "estimator", "a", "b", "adata", "store", "options", "parameters", "score", "A", "B"}


@pytest.mark.parametrize("name", CALLABLES)
def test_an_editor_is_told_what_a_parameter_takes(name: str) -> None:
    made = {} if inspect.isabstract(CALLABLES[name]) else inspect.signature(CALLABLES[name]).parameters
    vague = {one for one, own in made.items() if re.match(r"(Any|Unchecked)\b", str(own.annotation))}
    assert not vague - UNTYPED
