"""Shared options are declared once: a command takes a dataclass, whose fields become its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each field of each of its parameters that is a dataclass.

    Typer reads the signature, so this creates one in which the fields, with their annotations and defaults, replace the
    dataclass; the call assembles it again.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     rows: int = 3
    >>> @grouped
    ... def show(name: str, size: Size) -> None:
    ...     print(name, size)
    >>> list(signature(show).parameters)
    ['name', 'rows']
    >>> show(name="a", rows=5)
    a Size(rows=5)
    """
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
            for field in fields(kind)
        ]

    @wraps(command)
    def with_options(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
