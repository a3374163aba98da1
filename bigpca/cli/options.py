"""Options shared by several commands, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from bigpca.cli.parsing import parse_axis, parse_positions


class MissingChunks(StrEnum):
    """What to do about missing chunks of the input."""

    RAISE = "raise"
    FILL = "fill"


label_option = partial(typer.Option, rich_help_panel="Labels")
_rows = partial(typer.Option, rich_help_panel="What is a row")
_where = partial(typer.Option, rich_help_panel="Where it runs")

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="Zarr store, .npy, .npz, .h5, .parquet or .safetensors file, folder of shards; several paths are shards.",
    ),
]
Member = Annotated[str | None, typer.Option(help="Array inside SOURCE (Zarr group, HDF5 file, .npz, Parquet column).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
References = Annotated[
    list[str] | None,
    typer.Option(help="Where to read the training rows of a kernel model, if not beside or below it (repeatable)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout; text goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show more: the whole plan, all parameters of a model.")]
Scheduler = Annotated[str | None, _where(help="Join the running Dask scheduler at this address.")]
WorkersTimeout = Annotated[
    float, _where(metavar="SECONDS", min=0, help="Seconds to wait for a worker; adaptive clusters start with none.")
]


@dataclass(frozen=True)
class Reading:
    """Which part of the source is read, and how."""

    member: Member = None
    missing_chunks: Annotated[
        MissingChunks, typer.Option(help="Chunks missing from the store: an error, or the fill value.")
    ] = MissingChunks.RAISE
    pattern: Annotated[
        str | None,
        _rows(metavar="PATTERN", help='What is a row, as in einops: "n c h w -> (n h w) c"; else each sample is one.'),
    ] = None
    reduce: Annotated[
        str | None, _rows(metavar="mean|max|gem", help='Pools what the pattern leaves out: "n c h w -> n c".')
    ] = None
    axis: Annotated[
        list[str] | None,
        _rows(metavar="NAME=POSITIONS", help="Of an axis of the pattern: t=1: for all but the first (repeatable)."),
    ] = None
    columns: Annotated[
        str | None, _rows(metavar="POSITIONS", help="Which columns are used: 0:512, or 3,1,7, or names.")
    ] = None
    missing_value: Annotated[
        float | None, _rows(metavar="NUMBER", help="The value that is stored where there is none: -1.")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of :func:`bigpca.open`."""
        axes = dict(parse_axis(one) for one in self.axis or ())
        columns = None if self.columns is None else parse_positions(self.columns)
        code = self.missing_value
        coded = {} if code is None else {"missing_value": int(code) if code.is_integer() else code}
        what = {"pattern": self.pattern, "reduce": self.reduce, "columns": columns, **coded, **axes}
        return {"member": self.member, "missing_chunks": str(self.missing_chunks), **what}

    @property
    def arguments(self) -> list[str]:
        """The options of a command line that are not at their defaults."""
        texts = {"--member": self.member, "--pattern": self.pattern, "--reduce": self.reduce, "--columns": self.columns}
        if self.missing_chunks is not MissingChunks.RAISE:
            texts["--missing-chunks"] = str(self.missing_chunks)
        if self.missing_value is not None:
            texts["--missing-value"] = f"{self.missing_value:g}"
        words = [word for name, text in texts.items() if text is not None for word in (name, text)]
        return words + [word for one in self.axis or () for word in ("--axis", one)]


@dataclass(frozen=True)
class Cluster:
    """Where the work runs."""

    workers: Annotated[int | None, _where(metavar="INT", min=1, help="Start this many local worker processes.")] = None
    threads: Annotated[int | None, _where(metavar="INT", min=1, help="Threads of each local worker process.")] = None
    memory: Annotated[str | None, _where(help="Memory of each local worker process, e.g. 2GiB.")] = None
    scheduler: Scheduler = None
    workers_timeout: WorkersTimeout = 60

    @property
    def starts_workers(self) -> bool:
        """Whether local worker processes are to be started."""
        return any(value is not None for value in (self.workers, self.threads, self.memory))


@dataclass(frozen=True)
class Shows:
    """How much a command prints."""

    as_json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False
    debug: Debug = False


@dataclass(frozen=True)
class Supervision:
    """Where the labels are, and how they belong to the rows."""

    labels: Annotated[
        str | None,
        label_option(metavar="FILE[::COLUMN]", help="A label for each row: .csv with a header, Parquet, .npy or Zarr."),
    ] = None
    key: Annotated[
        str | None,
        label_option(
            metavar="COLUMN",
            help="Column of the files of labels and weights that holds the row keys of SOURCE, if it is not found.",
        ),
    ] = None
    by_position: Annotated[
        bool, label_option("--by-position", help="Labels and weights are in the order of the rows; keys are ignored.")
    ] = False
    weights: Annotated[
        str | None,
        label_option(
            metavar="FILE[::COLUMN]",
            help="How often each row counts: numbers, joined to the rows as labels are.",
        ),
    ] = None
