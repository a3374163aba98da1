"""Options shared by several commands, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bigpca.cli.parsing import parse_n_components, parse_size, parse_sketch

if TYPE_CHECKING:
    from bigpca import PCA, ApproximatePCA


class MissingChunks(StrEnum):
    """What to do about missing chunks of the input."""

    RAISE = "raise"
    FILL = "fill"


class NanPolicy(StrEnum):
    """What to do about rows with NaN or infinity."""

    RAISE = "raise"
    OMIT = "omit"


class Core(StrEnum):
    """How components are computed from a sketch."""

    NYSTROM = "nystrom"
    TUTORIAL = "tutorial"
    RITZ = "ritz"


_model = partial(typer.Option, rich_help_panel="Model")
_iteration = partial(typer.Option, rich_help_panel="Few reads: eigenvalues to a tolerance")
_sketch = partial(typer.Option, rich_help_panel="One read: an approximation with bounds")
_where = partial(typer.Option, rich_help_panel="Where it runs")

Source = Annotated[str, typer.Argument(help="Zarr store, .npy, folder of .npy shards, HDF5, Parquet, ...")]
Member = Annotated[str | None, typer.Option(help="Array inside SOURCE (Zarr group, HDF5 file, .npz, Parquet column).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
References = Annotated[
    list[str] | None,
    typer.Option(help="Where to read the training rows of a kernel model, if not beside or below it (repeatable)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout; text goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Scheduler = Annotated[str | None, _where(help="Join the running Dask scheduler at this address.")]
WorkersTimeout = Annotated[
    float, _where(min=0, help="Seconds to wait for a worker; adaptive clusters start with none.")
]


@dataclass(frozen=True)
class Reading:
    """Which part of the source is read, and how."""

    member: Member = None
    missing_chunks: Annotated[
        MissingChunks, typer.Option(help="Chunks missing from the store: an error, or the fill value.")
    ] = MissingChunks.RAISE


@dataclass(frozen=True)
class Cluster:
    """Where the work runs."""

    workers: Annotated[int | None, _where(min=1, help="Start this many local worker processes (loopback only).")] = None
    threads: Annotated[int | None, _where(min=1, help="Threads of each local worker process.")] = None
    memory: Annotated[str | None, _where(help="Memory of each local worker process, e.g. 2GiB.")] = None
    scheduler: Scheduler = None
    workers_timeout: WorkersTimeout = 60

    @property
    def starts_workers(self) -> bool:
        """Whether local worker processes are to be started."""
        return any(value is not None for value in (self.workers, self.threads, self.memory))


@dataclass(frozen=True)
class Estimator:
    """The estimator's parameters as typed; None leaves a parameter at the estimator's default."""

    n_components: Annotated[
        str,
        _model(
            "--n-components",
            "-k",
            help="How many: an integer, a fraction such as 0.95, all, or a rule: mle, elbow, marchenko-pastur, "
            "gavish-donoho.",
        ),
    ] = "all"
    center: Annotated[bool, _model(help="Subtract the mean (--no-center: latent semantic analysis).")] = True
    scale: Annotated[bool, _model("--scale", help="Divide each feature by its standard deviation.")] = False
    whiten: Annotated[bool, _model("--whiten", help="Scores of unit variance.")] = False
    nan_policy: Annotated[NanPolicy, _model(help="Rows with NaN or infinity: an error, or left out.")] = NanPolicy.RAISE
    solver: Annotated[
        str | None, _model(help="How to compute: auto, the default, compares the costs of covariance, dot and krylov.")
    ] = None
    seed: Annotated[int | None, _model(min=0, help="Of all that is random: krylov's start, a sketch (0).")] = None
    memory_limit: Annotated[str | None, _model(help="Refuse a plan over this size, e.g. 2GiB.")] = None
    solve_threads: Annotated[int | None, _model(min=1, help="BLAS threads of the final solve.")] = None
    tol: Annotated[
        float | None, _iteration(help="krylov: relative error of the eigenvalues at which it stops (0.001).")
    ] = None
    max_passes: Annotated[int | None, _iteration(min=2, help="krylov: maximum number of reads (10).")] = None
    sketch: Annotated[
        str | None,
        _sketch(
            metavar="KIND:COLUMNS",
            help="gaussian:500, sparse-sign:500, feature-hash:2000, srht:500, "
            "or for images downsample:3x224x224:3x56x56.",
        ),
    ] = None
    core: Annotated[
        Core | None, _sketch(help="How components are computed from the sketch (nystrom); ritz needs one more read.")
    ] = None

    def build(self, missing_chunks: MissingChunks, workers_timeout: float) -> PCA | ApproximatePCA:
        """Create the estimator, which itself raises for values out of range."""
        import bigpca

        arguments: dict[str, Any] = {
            "n_components": parse_n_components(self.n_components),
            "memory_limit": None if self.memory_limit is None else parse_size(self.memory_limit),
            "nan_policy": str(self.nan_policy),
            "missing_chunks": str(missing_chunks),
            "workers_timeout": workers_timeout,
        }
        arguments |= {name: getattr(self, name) for name in ("center", "scale", "whiten", "solve_threads")}
        self._check_solver()
        only_exact = self._given("solver", "tol", "max_passes")
        if self.sketch is None:
            self._reject_core()
            seeded: dict[str, Any] = {} if self.seed is None else {"random_state": self.seed}
            return bigpca.PCA(**arguments, **only_exact, **seeded)
        if only_exact:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in only_exact)
            raise typer.BadParameter(
                f"--sketch needs one read and does not use {names}. Leave out {names}, or leave out --sketch "
                "for a solver that iterates to a tolerance."
            )
        return bigpca.ApproximatePCA(
            sketch=parse_sketch(self.sketch, self.seed or 0), **arguments, **self._given("core")
        )

    def _given(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}

    def _check_solver(self) -> None:
        from bigpca.estimators.linear.choosing import FITS

        known = ("auto", *FITS)
        if self.solver is not None and self.solver not in known:
            raise typer.BadParameter(
                f"{self.solver!r} is not one of {', '.join(map(repr, known))}.", param_hint="'--solver'"
            )

    def _reject_core(self) -> None:
        if self.core is not None:
            raise typer.BadParameter(
                "--core requires --sketch. Add one, such as --sketch gaussian:500, or leave out --core."
            )
