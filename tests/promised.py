"""What a release promises, as data: public names with their signatures, fitted attributes, exit codes and formats.

``python tests/promised.py > tests/promised.json`` writes the list, at a release only: see CONTRIBUTING.
"""

import inspect
import json
import sys
from pkgutil import resolve_name
from typing import Any

import bigpca as bp
from bigpca.cli.output import MEANINGS
from bigpca.engine import checkpoint
from bigpca.estimators.shared.transformer import Estimator
from bigpca.storage import carriers, outputs
from tests.test_docstrings import entries_of, listed, sections_of


def parameters_of(one: Any) -> list[str]:
    """Return the parameters of a call in order: names, ``*`` before those by keyword only, ``=`` with a default."""
    found, keywords = [], False
    for parameter in inspect.signature(one).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            found, keywords = [*found, "*"], True
        if parameter.name not in ("self", "cls"):
            default = parameter.default is not parameter.empty
            found.append(f"{parameter}".partition(":")[0] + f"={parameter.default!r}" * default)
    return found


def is_error(one: Any) -> bool:
    """Whether it is an error or a warning, which users catch and do not make."""
    return inspect.isclass(one) and issubclass(one, Exception)


def promised() -> dict[str, Any]:
    """Return the list."""
    made = {name: resolve_name(name) for name in listed()}
    calls = {name: one for name, one in made.items() if callable(one) and not inspect.isabstract(one)}
    estimators = {one.__name__: one for one in calls.values() if inspect.isclass(one) and issubclass(one, Estimator)}
    methods: dict[str, dict[str, list[str]]] = {}
    for name, one in estimators.items():
        for method in filter(lambda method: not method.startswith("_"), dir(one)):
            found = inspect.getattr_static(one, method)
            found = inspect.unwrap(getattr(found, "fn", getattr(found, "__func__", found)))
            if inspect.isfunction(found) and found.__module__.startswith("bigpca"):
                methods.setdefault(method, {}).setdefault(", ".join(parameters_of(found)), []).append(name)
    return {
        "version": bp.__version__,
        "calls": {name: ", ".join(parameters_of(one)) for name, one in sorted(calls.items()) if not is_error(one)},
        "errors": sorted(name for name, one in calls.items() if is_error(one)),
        "methods": {
            name: sorted(f"({known}) of {' '.join(sorted(of))}" for known, of in found.items())
            for name, found in sorted(methods.items())
        },
        "attributes": {
            name: sorted(filter(lambda found: found.endswith("_"), entries_of(sections_of(one).get("Attributes", ""))))
            for name, one in estimators.items()
        },
        "exit codes": {str(int(code)): meaning for code, meaning in MEANINGS.items()},
        "formats": {
            "models": list(carriers.MODEL_FORMAT),
            "outputs": list(outputs.FORMAT),
            "checkpoints": checkpoint.FORMAT,
        },
    }


def changed(before: Any, now: Any, name: str = "") -> dict[str, str]:
    """Return what differs between two lists, by name."""
    if isinstance(before, dict) and isinstance(now, dict):
        found: dict[str, str] = {}
        for key in sorted({*before, *now}):
            found |= changed(before.get(key), now.get(key), key)
        return found
    if isinstance(before, list) and isinstance(now, list) and all(f"{one}".isidentifier() for one in [*before, *now]):
        gone, new = set(before) - set(now), set(now) - set(before)
        return dict.fromkeys(gone, f"of {name} is gone") | dict.fromkeys(new, f"of {name} is new")
    return {} if before == now else {name: f"was {before!r} and is {now!r}"}


if __name__ == "__main__":
    json.dump(promised(), sys.stdout, indent=1)
    print()
