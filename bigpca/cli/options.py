"""The options that several commands share, and how their text is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bigpca import PCA

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class MissingChunks(StrEnum):
    """What to do about chunks that the input does not hold."""

    RAISE = "raise"
    FILL = "fill"


class NanPolicy(StrEnum):
    """What to do about rows with NaN or infinity."""

    RAISE = "raise"
    OMIT = "omit"


class Solver(StrEnum):
    """How the components are computed."""

    AUTO = "auto"
    COVARIANCE = "covariance"
    DOT = "dot"


def parse_size(text: str) -> int:
    """Read a number of bytes such as "512MiB", "2GB" or "1e9".

    >>> parse_size("512MiB"), parse_size("2 GB")
    (536870912, 2000000000)
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    try:
        if match is None or not (size := int(float(match[1]) * _UNITS[match[2]])):
            raise ValueError
    except (ValueError, KeyError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size. Write a number and a unit, such as 512MiB or 4GB.") from None
    return size


def parse_n_components(text: str) -> int | float | str | None:
    """Read a number of components: an integer, a fraction of the variance, "mle" or "all".

    >>> parse_n_components("64"), parse_n_components("0.95"), parse_n_components("mle"), parse_n_components("all")
    (64, 0.95, 'mle', None)
    """
    if text in ("mle", "all"):
        return None if text == "all" else text
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a number of components. Write an integer, a fraction of the variance such as 0.95, "
            '"mle" or "all".'
        ) from None


Source = Annotated[str, typer.Argument(help="Zarr store, .npy, folder of .npy shards, HDF5, Parquet, ...")]
Member = Annotated[str | None, typer.Option(help="Array inside SOURCE (Zarr group, HDF5 file, .npz, Parquet column).")]
Missing = Annotated[MissingChunks, typer.Option(help="Chunks the store does not hold: an error, or the fill value.")]
Components = Annotated[
    str, typer.Option("--n-components", "-k", help='How many: an integer, a fraction such as 0.95, "mle" or "all".')
]
SolverOption = Annotated[Solver, typer.Option(help="How to compute; auto compares the costs.")]
Center = Annotated[bool, typer.Option(help="Subtract the mean (--no-center: latent semantic analysis).")]
Scale = Annotated[bool, typer.Option("--scale", help="Divide each feature by its standard deviation.")]
Whiten = Annotated[bool, typer.Option("--whiten", help="Scores of unit variance.")]
Nan = Annotated[NanPolicy, typer.Option(help="Rows with NaN or infinity: an error, or left out.")]
MemoryLimit = Annotated[str | None, typer.Option(help="Refuse a plan over this size, e.g. 2GiB.")]
SolveThreads = Annotated[int | None, typer.Option(min=1, help="BLAS threads of the final solve.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout; text goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Start this many local worker processes (loopback only).")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of each local worker process.")]
Memory = Annotated[str | None, typer.Option(help="Memory of each local worker process, e.g. 2GiB.")]
Scheduler = Annotated[str | None, typer.Option(help="Join the running Dask scheduler at this address.")]


@dataclass(frozen=True)
class EstimatorOptions:
    """The options that make a PCA, as typed."""

    n_components: str
    solver: str
    center: bool
    scale: bool
    whiten: bool
    nan_policy: str
    missing_chunks: str
    memory_limit: str | None
    solve_threads: int | None

    def build(self) -> PCA:
        """Make the estimator; values out of range are its own errors."""
        import bigpca

        arguments: dict[str, Any] = {
            "n_components": parse_n_components(self.n_components),
            "memory_limit": None if self.memory_limit is None else parse_size(self.memory_limit),
        }
        for name in ("center", "scale", "whiten", "solve_threads"):
            arguments[name] = getattr(self, name)
        for name in ("solver", "nan_policy", "missing_chunks"):
            arguments[name] = str(getattr(self, name))
        return bigpca.PCA(**arguments)
