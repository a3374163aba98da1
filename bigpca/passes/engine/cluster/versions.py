"""Which differences between the software of client, scheduler and workers break a run, and which only warn.

=============  ======================  ===================================================================
package        must agree              because
=============  ======================  ===================================================================
python         major.minor             functions are sent as byte code, which changes with the minor version
bigpca         the whole version       states and readers are sent as pickles of its classes
dask,          year.month              task graphs and messages are pickles of their classes, which change
distributed                            between releases; patches keep them
numpy, zarr    major                   arrays and stores are pickled and read in the form of that major
scipy,         (only a warning)        last digits may differ; formats do not
numcodecs
=============  ======================  ===================================================================

Any other difference is reported in one warning: results are as accurate, but identical bits are guaranteed only for
identical versions. A scheduler runs no tasks, but it unpickles graphs, so the same applies to it.
"""

from __future__ import annotations

from collections.abc import Mapping

WHOLE = 99
MUST_AGREE = {
    "python": 2, "bigpca": WHOLE, "dask": 2, "distributed": 2, "numpy": 1, "zarr": 1, "scipy": 0, "numcodecs": 0,
}  # fmt: skip
PACKAGES = tuple(MUST_AGREE)
INSTALL = (
    "It is best to run scheduler and workers in the same image or environment as the client. Running workers can "
    'install it by client.register_plugin(distributed.PipInstall(["bigpca"])), or by '
    "distributed.diagnostics.plugin.UploadDirectory of the folder that holds the package."
)
Versions = Mapping[str, str | None]


def check_versions(here: Versions, others: Mapping[str, Versions]) -> str | None:
    """Compare the versions of a client with those of its scheduler and workers.

    Parameters
    ----------
    here : mapping of str to str or None
        Package -> version in this process.
    others : mapping of str to such a mapping
        ``"scheduler"`` or ``"worker tcp://..."`` -> versions there; None for a missing package.

    Returns
    -------
    str or None
        The warning, if something differs that does not break a run.

    Raises
    ------
    ConnectionError
        If something that a run needs is missing, or differs in a way that breaks it.
    """
    missing = {name: [who for who, found in others.items() if found[name] is None] for name in here}
    lines = [f"{name} is missing on {some(places)}" for name, places in missing.items() if places]
    if lines:
        versions = ", ".join(f"{name} {here[name]}" for name, places in missing.items() if places)
        raise ConnectionError(f"{'; '.join(lines)}, but the client has {versions}. {INSTALL}")
    different = _differences(here, others)
    breaking = [
        _line(name, there, here, places) for (name, there), places in different.items() if _breaks(name, there, here)
    ]
    if breaking:
        raise ConnectionError(
            f"{'; '.join(breaking)}: tasks of one do not run on the other (python must agree in major.minor, dask and "
            "distributed in year.month, numpy and zarr in the major version, bigpca in all). "
            "Install the same versions on both."
        )
    if different:
        found = "; ".join(_line(name, there, here, places) for (name, there), places in different.items())
        return f"{found}: the result is as accurate, but its last bits may differ from those of equal versions."
    return None


def _differences(here: Versions, others: Mapping[str, Versions]) -> dict[tuple[str, str], list[str]]:
    """Return (package, version) -> where it is installed, for versions other than the client's."""
    found: dict[tuple[str, str], list[str]] = {}
    for who, there in others.items():
        for name in here:
            if there[name] != here[name]:
                found.setdefault((name, str(there[name])), []).append(who)
    return found


def _breaks(name: str, there: str, here: Versions) -> bool:
    parts = MUST_AGREE[name]
    return there.split(".")[:parts] != str(here[name]).split(".")[:parts]


def _line(name: str, there: str, here: Versions, places: list[str]) -> str:
    return f"{name} is {there} on {some(places)} and {here[name]} here"


def some(places: list[str]) -> str:
    """Name the first place, and count the others."""
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
