"""Settings of a run that hold within a ``with`` block: defaults for parameters that are not given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

_SETTINGS: ContextVar[Mapping[str, object]] = ContextVar("bigpca-settings", default=MappingProxyType({}))


@contextmanager
def config(
    *,
    memory_limit: int | str | None = None,
    solve_threads: int | None = None,
    workers_timeout: float | None = None,
    keep_state_bytes: int | None = None,
) -> Iterator[None]:
    """Set parameters of runs for all estimators that do not set them themselves.

    A parameter that has its default value has the value of the innermost ``with`` block that sets it; a parameter with
    another value keeps it. ``get_params``, ``clone`` and model files are as without the block. What counts is the block
    in which a method such as ``fit`` or ``transform`` is called, in its thread or asynchronous task.

    Parameters
    ----------
    memory_limit, solve_threads, workers_timeout, keep_state_bytes
        As in :class:`bigpca.PCA`; the default None leaves a setting as it is.

    Returns
    -------
    context manager

    Examples
    --------
    >>> import bigpca as bp
    >>> with bp.config(memory_limit="2 GiB", solve_threads=4):
    ...     plan = bp.PCA(1).plan([[0.0, 1.0], [1.0, 3.0], [2.0, 4.0]])
    >>> plan.resources.limit_bytes == 2 << 30
    True
    """
    given = {
        "memory_limit": memory_limit, "solve_threads": solve_threads, "workers_timeout": workers_timeout,
        "keep_state_bytes": keep_state_bytes,
    }  # fmt: skip
    outer = _SETTINGS.get()
    own = {**outer, **{name: one for name, one in given.items() if one is not None}}
    try:
        try:
            _SETTINGS.set(own)
            yield
        finally:
            _end(own, outer)
    finally:  # again, if that was interrupted
        _end(own, outer)


def _end(own: Mapping[str, object], outer: Mapping[str, object]) -> None:
    """Restore the outer settings, unless that is done: a block may have begun since."""
    if _SETTINGS.get() is own:
        _SETTINGS.set(outer)


def setting(estimator: object, name: str) -> Any:
    """Return a parameter of an estimator, or the value of the ``with`` block if it has its default; None without it."""
    value = getattr(estimator, name, None)
    default = (type(estimator).__init__.__kwdefaults__ or {}).get(name)
    return _SETTINGS.get().get(name, value) if value == default else value
