"""Options shared by several commands, each declared once.

Values that are written as a text: sizes, positions, records such as sketches. The options of a model: its method and
the parameters of the estimator, from :mod:`bigpca.parameters`. Which estimator a command line names, and what its
constructor takes. A command takes dataclasses, whose fields become its options; the help of an option is in the
docstring of its dataclass or command, and its panel is the section's title.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from enum import StrEnum
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer

from bigpca.errors import closest
from bigpca.parameters import PARAMETERS, Parameter, number_of

# What is asked for -> the estimator. A new estimator is one row, and a new method without labels one of those below.
ESTIMATORS = {
    ("pca",): "PCA",
    ("pca", "sketch"): "ApproximatePCA",
    ("pca", "kernel"): "KernelPCA",
    ("pca", "kernel", "landmarks"): "NystromKernelPCA",
    ("pca", "kernel", "sketch"): "ApproximateKernelPCA",
    ("factor",): "FactorAnalysis",
    ("correspondence",): "CorrespondenceAnalysis",
    ("generalized",): "GeneralizedPCA",
    ("sfa",): "SlowFeatureAnalysis",
    ("mnf",): "MinimumNoiseFraction",
    ("tica",): "TICA",
    ("fisher",): "FisherDiscriminantAnalysis",
    ("roweis",): "RoweisDiscriminantAnalysis",
    ("roweis", "kernel"): "KernelRoweisDiscriminantAnalysis",
    ("roweis", "kernel", "landmarks"): "KernelRoweisDiscriminantAnalysis",
    ("supervised",): "SupervisedPCA",
    ("supervised", "kernel"): "KernelSupervisedPCA",
    ("supervised", "kernel", "landmarks"): "KernelSupervisedPCA",
    ("random-projection",): "SupervisedRandomProjection",
    ("scored",): "ScoredPCA",
    ("contrast",): "ContrastivePCA",
    ("cca",): "CCA",
    ("plssvd",): "PLSSVD",
    ("pls",): "PLSRegression",
    ("ridge",): "Ridge",
}
METHODS = {method: method for method, *_ in ESTIMATORS}
Method: Any = StrEnum("Method", METHODS)  # type: ignore[misc]  # of names that a type checker cannot know
OF_ROWS = ("pca", "factor", "correspondence", "generalized", "sfa", "mnf", "tica")  # without labels or targets
OF_TARGETS = ("cca", "plssvd", "pls", "ridge")
NEEDED = {"labels": "FILE::COLUMN", "targets": "SOURCE"}
NONE = object()  # what an option is that was given as "none", or "all"


def parse_size(text: str) -> int:
    """Parse a number of bytes such as "512MiB", "2GB" or "1e9".

    >>> parse_size("512MiB"), parse_size("2 GB")
    (536870912, 2000000000)
    """
    from bigpca.engine.resources import parse_limit

    try:
        return parse_limit(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a size. Write a number and a unit, such as 512MiB or 4GB.") from None


def parse_positions(text: str) -> slice | list[int] | list[str]:
    """Parse positions along an axis, or names of columns.

    >>> parse_positions("0:512"), parse_positions("1:"), parse_positions("3,1,7"), parse_positions("age,height")
    (slice(0, 512, None), slice(1, None, None), [3, 1, 7], ['age', 'height'])
    """
    if re.fullmatch(r"(-?\d+)?:(-?\d+)?(:-?\d+)?", text):
        return slice(*(int(part) if part else None for part in text.split(":")))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts and all(re.fullmatch(r"-?\d+", part) for part in parts):
        return [int(part) for part in parts]
    if not parts:
        raise typer.BadParameter(f"{text!r} chooses no columns. Write a range such as 0:512, or positions such as 3,1.")
    return parts


def parse_components(text: str) -> Any:
    """Parse a number of components: a number, a word, or a rule and its values.

    >>> parse_components("0.95"), parse_components("cross-validated:10:likelihood")
    (0.95, CrossValidated(cv=10, criterion='likelihood', max_components=None))
    """
    return record_of(text, "rules") if ":" in text else PARAMETERS["n_components"].read(text)


def parse_fill(text: str) -> float | None:
    """Parse what is missing among stored numbers: nothing, or a number, whole numbers of any size exactly.

    >>> parse_fill("none"), parse_fill("-9223372036854775806"), parse_fill("9.96921e36")
    (None, -9223372036854775806, 9.96921e+36)
    """
    try:
        return None if text == "none" else number_of(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither none nor a number, such as -32767.") from None


def parse_codes(text: str) -> list[int | float]:
    """Parse codes of missing values.

    >>> parse_codes("-1"), parse_codes("-1,-9")
    ([-1], [-1, -9])
    """
    try:
        return [number_of(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a code such as -1, or codes such as -1,-9.") from None


def parse_axis(text: str) -> tuple[str, slice | list[int] | int]:
    """Parse the positions or the size of an axis of a pattern.

    >>> parse_axis("t=1:"), parse_axis("t=0,2"), parse_axis("h=28")
    (('t', slice(1, None, None)), ('t', [0, 2]), ('h', 28))
    """
    name, _, value = text.partition("=")
    found = parse_positions(value) if name.isidentifier() and value else [""]
    if isinstance(found, list) and isinstance(found[0], str):
        raise typer.BadParameter(
            f"{text!r} is not an axis of a pattern and its positions. Write t=1: for all positions of axis t but "
            f"the first, t=0,2 for two positions, or h=28 for its size."
        )
    whole = re.fullmatch(r"\d+", value)
    return name, int(value) if whole else found


def record_of(text: str, module: str) -> Any:
    """Return a record of a module of the library from its name and values, separated by colons.

    >>> record_of("gaussian:500", "sketches"), record_of("downsample:3x8x8:3x4x4", "sketches")
    (Gaussian(random_state=0, q=500), Downsample(random_state=0, shape=(3, 8, 8), to=(3, 4, 4)))
    >>> record_of("l2:keep", "preprocessing"), record_of("patterson", "scales")
    (L2(zero_rows='keep'), Patterson(ploidy=2))
    """
    home = import_module(f"bigpca.{module}")
    kinds = {re.sub("(?<=[a-z])(?=[A-Z])", "-", one).lower(): getattr(home, one) for one in home.__all__}
    records = [name for name, kind in kinds.items() if is_dataclass(kind) and not inspect.isabstract(kind)]
    name, *values = text.split(":")
    if name not in records:
        raise ValueError(f"{name!r} is not known.{closest(name, records)}")
    bound = inspect.signature(kinds[name]).bind(*map(_value, values))
    return kinds[name](*bound.args)


def _value(text: str) -> Any:
    """Return a value of a record: a number, the sizes of a shape such as 3x8x8, or a word."""
    if re.fullmatch(r"\d+(x\d+)+", text):
        return tuple(map(int, text.split("x")))
    with suppress(ValueError):
        return number_of(text)
    return text


def parse_scale(text: str) -> Any:
    """Parse a scale: a rule, or a file of one number for each column.

    >>> parse_scale("patterson:4")
    Patterson(ploidy=4)
    """
    import numpy as np

    return record_of(text, "scales") if text.startswith("patterson") else np.load(text, allow_pickle=False)


def parse_whitening(text: str) -> Any:
    """Parse a whitening: its power, and after colons its epsilon and "l2".

    >>> parse_whitening("0.25"), parse_whitening("0.5:1e-3:l2")
    (Whitening(power=0.25, epsilon=0, l2=False), Whitening(power=0.5, epsilon=0.001, l2=True))
    """
    from bigpca.scales import Whitening

    power, _, epsilon = text.lower().removesuffix(":l2").partition(":")
    return Whitening(number_of(power), number_of(epsilon or "0"), l2=text.lower().endswith(":l2"))


def parse_seed(text: str) -> int:
    """Parse a seed.

    >>> parse_seed("3")
    3
    """
    from bigpca.seeds import check_seed

    return check_seed(PARAMETERS["random_state"].read(text))


MissingChunks = StrEnum("MissingChunks", ["RAISE", "FILL"])  # each value is its name in lower case


class Common:
    """Options that commands take one by one, each with the same meaning everywhere.

    Parameters
    ----------
    source : SOURCE
        Zarr store, .npy, .h5, .nc, .parquet, .bed, .pt or .safetensors, folder of shards; several are shards.
    model : MODEL
        The model saved by a fit.
    scores : PATH
        Its scores, written by fit --scores or transform.
    labels : FILE[::COLUMN]
        Such as labels.csv::species; joined by key if the scores have keys.
    by_position
        Labels are in the order of the rows; keys are ignored.
    image_shape : HxW[xC]
        The shape of one row, e.g. 28x28 or 32x32x3: draws components as pictures.
    member : NAME
        Array inside SOURCE (Zarr group, HDF5 file, Parquet column).
    overwrite
        Replace outputs that exist.
    references : PATH
        Where to read the training rows of a kernel model, if not beside or below it (repeatable).
    as_json : --json
        Print exactly one JSON object on stdout; text goes to stderr.
    debug
        Show the traceback of an error.

    Where it runs
    -------------
    scheduler : ADDRESS
        Join the running Dask scheduler at this address.
    workers_timeout : SECONDS >= 0
        Seconds to wait for a worker; adaptive clusters start with none.
    """


@dataclass(frozen=True)
class SourceOptions:
    """Which part of the source is read, and how.

    Parameters
    ----------
    missing_chunks
        Chunks missing from the store: an error, or the fill value.

    What is a row
    -------------
    pattern : PATTERN
        What makes a row, as in einops: "n c h w -> (n h w) c"; else each sample is one.
    sample_dims : NAMES
        For netCDF: the dimensions of the rows, such as time,y,x; else the first.
    axis : NAME=POSITIONS
        Positions on an axis of the pattern: t=1: is all but the first (repeatable).
    columns : POSITIONS
        The columns to use: 0:512, or 3,1,7, or names; of a table, : is all that hold numbers.
    missing_value : CODES
        The codes of missing values: -1, or -1,-9.
    fill : none|NUMBER
        For netCDF: treat every stored number as a value (none), or all but this one.
    """

    member: str | None = None
    missing_chunks: MissingChunks = MissingChunks.RAISE
    pattern: str | None = None
    sample_dims: str | None = None
    axis: list[str] | None = None
    columns: str | None = None
    missing_value: str | None = None
    fill: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of :func:`bigpca.open`."""
        axes = dict(parse_axis(one) for one in self.axis or ())
        columns = None if self.columns is None else parse_positions(self.columns)
        coded = {} if self.missing_value is None else {"missing_value": parse_codes(self.missing_value)}
        filled = {} if self.fill is None else {"fill": parse_fill(self.fill)}
        dims = None if self.sample_dims is None else self.sample_dims.split(",")
        what = {
            "pattern": self.pattern,
            "sample_dims": dims,
            "columns": columns,
            **coded,
            **axes,
        }
        return {"member": self.member, "missing_chunks": str(self.missing_chunks), **filled, **what}

    @property
    def arguments(self) -> list[str]:
        """The options of a command line that are not at their defaults."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            given = [] if value == field.default else value if isinstance(value, list) else [value]
            for one in given:
                words += [f"--{field.name.replace('_', '-')}", str(one)]
        return words


@dataclass(frozen=True)
class Cluster:
    """Where the work runs: in threads of this process, as many as Dask is configured with, or on a cluster."""

    scheduler: str | None = None
    workers_timeout: float = 60


@dataclass(frozen=True)
class Shows:
    """How much a command prints.

    Parameters
    ----------
    quiet : --quiet -q
        Print errors and warnings only.
    verbose : --verbose -v
        Show more: the whole plan, all parameters of a model.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False


@dataclass(frozen=True)
class Labelling:
    """Where the labels are, and how they belong to the rows.

    Labels
    ------
    labels : FILE[::COLUMN]
        A label for each row: .csv with a header, Parquet, .npy or Zarr.
    targets : SOURCE
        cca, plssvd, pls, ridge: rows of Y, in the order of SOURCE.
    key : COLUMN
        Key column in the files of labels, weights and groups, if it is not found automatically.
    by_position
        Labels, weights and groups are in the order of the rows; keys are ignored.
    weights : FILE[::COLUMN]
        How often each row counts: numbers, matched to rows like labels.
    groups : FILE[::COLUMN]
        The group of each row, such as its day or site, matched to rows like labels.
    """

    labels: str | None = None
    targets: str | None = None
    key: str | None = None
    by_position: bool = False
    weights: str | None = None
    groups: str | None = None


def estimator_of(method: str, **variants: Any) -> str:
    """Return the name of the estimator of a method in the variants whose options are given.

    Parameters
    ----------
    method : Method
    **variants : the values of ``--kernel``, ``--landmarks`` and ``--sketch``; None if an option is not given.

    Raises
    ------
    typer.BadParameter
        If the method has no such variant; lists those that exist.

    Examples
    --------
    >>> estimator_of("pca", kernel="rbf", landmarks=100), estimator_of("fisher")
    ('NystromKernelPCA', 'FisherDiscriminantAnalysis')
    """
    key = (method, *(name for name, value in variants.items() if value is not None))
    if key in ESTIMATORS:
        return ESTIMATORS[key]
    given, *possible = (
        " ".join(f"--{name}" for name in own) or "none" for one, *own in (key, *ESTIMATORS) if one == method
    )
    raise typer.BadParameter(f"--method {method} cannot be used with {given}; it takes {', or '.join(possible)}.")


# Each option of a model, with the parameter or setting that it sets.
OPTIONS = {
    option.flags.partition("/")[0].partition(" ")[0].lstrip("-").replace("-", "_") or name: (name, option)
    for name, option in PARAMETERS.items()
    if option.help
}
_scale = Parameter("patterson, patterson:PLOIDY, or the divisors in a .npy file.", form="RULE|FILE", panel="Model")
_power = "Divide scores by a power of the variances: 0.25, 0.5:EPSILON, or 0.5:0:l2."
OPTIONS |= {"scale_by": ("scale", _scale), "whitening": ("whiten", replace(_scale, help=_power, form="POWER"))}
READERS: dict[str, Callable[[str], Any]] = {
    "background": _value,
    "metric": lambda text: import_module("numpy").load(text, allow_pickle=False),
    "memory_limit": parse_size,
    "n_components": parse_components,
    "preprocess": lambda text: [record_of(step.strip(), "preprocessing") for step in text.lower().split(",")],
    "scale_by": parse_scale,
    "seed": parse_seed,
    "sketch": lambda text: record_of(text, "sketches"),
    "whitening": parse_whitening,
}


def _option(name: str) -> tuple[str, Any, None]:
    """Return the field of an option: a switch without a value, or a text that is read and checked."""
    parameter, option = OPTIONS[name]
    read = READERS.get(name, option.read)

    def parse(text: str) -> Any:
        try:
            value = read(text)
            option.check(parameter, value)
        except (OSError, TypeError, ValueError) as error:
            why = str(error) if str(error).endswith((".", "?")) else f"{error}."
            raise typer.BadParameter(f"{text!r} is not valid: {why} {option.help}") from None
        return NONE if value is None else value

    flags: list[str] = option.flags.split()
    shown: dict[str, Any] = {"rich_help_panel": option.panel, "help": option.help}
    if not option.metavar:
        return name, Annotated[bool | None, typer.Option(*flags, **shown)], None
    words = [*option.choices, *[option.none] * bool(option.none)]
    made = typer.Option(*flags, parser=parse, metavar=option.metavar, autocompletion=lambda: words, **shown)
    return name, Annotated[str | None, made], None


_method = typer.Option(metavar="METHOD", help=f"{', '.join(Method)}.", rich_help_panel="Model")
_Options: Any = make_dataclass(
    "_Options", [("method", Annotated[Method, _method], Method("pca")), *map(_option, OPTIONS)], frozen=True
)


class ModelOptions(_Options):  # type: ignore[misc]
    """The method, and the estimator's parameters; None leaves a parameter at the estimator's default."""

    @property
    def name(self) -> str:
        """The estimator that the options choose."""
        return estimator_of(self.method, kernel=self.kernel, landmarks=self.landmarks, sketch=self.sketch)

    def check(self, given: Labelling) -> None:
        """Reject options that the estimator does not have.

        Parameters
        ----------
        given : Labelling
            Labels and targets.

        Raises
        ------
        typer.BadParameter
        """
        for first, second in (("scale", "scale_by"), ("whiten", "whitening")):
            if getattr(self, first) and getattr(self, second) is not None:
                option = second.replace("_", "-")
                raise typer.BadParameter(f"--{first} and --{option} set the same parameter. Leave out --{first}.")
        import bigpca

        known = {*inspect.signature(getattr(bigpca, self.name)).parameters, "solve_threads"}
        known |= {"max_kernel_evaluations"} if "kernel" in known else set()
        unused = [name for name in self._given if OPTIONS[name][0] not in known]
        if "sketch" in known and "seed" in unused:
            unused.remove("seed")  # of the sketch
        if unused:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            what = "--sketch needs one read and" if self.sketch else self.name
            instead = ", or leave out --sketch for a solver that iterates to a tolerance" if self.sketch else ""
            raise typer.BadParameter(f"{what} does not use {options}. Leave out {options}{instead}.")
        needs = {**dict.fromkeys(OF_ROWS, ""), **dict.fromkeys(OF_TARGETS, "targets")}.get(self.method, "labels")
        for kind, value in NEEDED.items():
            there = getattr(given, kind) is not None
            if there and kind != needs:
                raise typer.BadParameter(
                    f"--method {self.method} does not use {kind}. Choose another --method, or leave out --{kind}."
                )
            if kind == needs and not there:
                raise typer.BadParameter(f"--method {self.method} requires {kind}. Add --{kind} {value}.")

    def build(self) -> Any:
        """Create the estimator; raises typer.BadParameter for values that it does not know."""
        import bigpca
        from bigpca.estimators.shared.inputs import check_parameters
        from bigpca.kernels import as_kernel

        values = {OPTIONS[name][0]: value for name, value in self._given.items()}
        if self.sketch is not None:
            values["sketch"] = replace(self.sketch, random_state=self.seed or 0)
        kind = getattr(bigpca, self.name)
        model = kind(**{name: value for name, value in values.items() if name in kind._get_param_names()})
        try:
            check_parameters(model)
            as_kernel(self.kernel or "linear")
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error)) from None
        return model

    def settings(self) -> AbstractContextManager[None]:
        """Return the block in which the estimator is planned and fitted."""
        from bigpca.settings import config

        return config(solve_threads=self.solve_threads, max_kernel_evaluations=self.max_kernel_evaluations)

    @property
    def _given(self) -> dict[str, Any]:
        """The values of the options that are given, except the method."""
        found = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        return {name: None if value is NONE else value for name, value in found.items()}


def sections(documented: Any) -> dict[str, str]:
    """Return the sections of a docstring by their titles; what is above them has the title "".

    >>> sections(Shows)[""]
    'How much a command prints.'
    """
    above, *parts = re.split(r"\n\n([^\n]+)\n---+\n", inspect.getdoc(documented) or "")
    return {"": above, **dict(zip(parts[::2], parts[1::2], strict=True))}


def _options_of(documented: Any) -> dict[str, dict[str, str]]:
    """Return what a docstring says of options: how they are written, their help, and the panel, the section's title."""
    entries = re.compile(r"^(\w+)(?: : (.+))?\n((?: +.+\n?)+)", re.MULTILINE)
    return {
        name: {"form": form, "help": " ".join(text.split()), "panel": "" if title == "Parameters" else title}
        for title, section in sections(documented).items()
        for name, form, text in entries.findall(section)
    }


def _declared(name: str, kind: Any, default: Any, alone: bool, form: str = "", help: str = "", panel: str = "") -> Any:
    """Return the type of a parameter as Typer reads it: an argument if it stands ``alone``, else an option.

    ``form`` has the flags, if they are not the name, how a value is written, and the least number: "-n INT >= 1".
    """
    flags = [word for word in form.split() if word.startswith("-")]
    written, _, least = " ".join(word for word in form.split() if word not in flags).partition(" >= ")
    shown: dict[str, Any] = {"help": help or None, "metavar": written or None, "rich_help_panel": panel or None}
    if alone:
        return Annotated[kind, typer.Argument(**shown)]
    if default is False and not flags:  # without the option that sets it to False
        flags = [f"--{name.replace('_', '-')}"]
    return Annotated[kind, typer.Option(*flags, min=int(least) if least else None, **shown)]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each parameter; a parameter that is a dataclass gives one for each of its fields.

    Typer reads the signature, so this creates one in which the fields, with their defaults, replace the dataclass; the
    call assembles it again. Positional parameters without a default are arguments. What an option means is in the
    docstring of the command or of the dataclass, or in that of :class:`Common`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     rows: int = 3
    >>> @grouped
    ... def show(name: str, size: Size) -> None:
    ...     print(name, size)
    >>> list(inspect.signature(show).parameters)
    ['name', 'rows']
    >>> show(name="a", rows=5)
    a Size(rows=5)
    """
    groups: dict[str, Any] = {}
    found: dict[str, tuple[Any, Any]] = {}
    said = _options_of(Common)

    def add(owner: Any, name: str, kind: Any, default: Any, alone: bool) -> None:
        if not hasattr(kind, "__metadata__"):  # which says all that Typer needs
            own = said | _options_of(owner)
            kind = _declared(name, kind, default, alone, **own.get(name, {}))
        found[name] = kind, default

    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind, default = parameter.annotation, parameter.default
        if not is_dataclass(kind):
            add(command, name, kind, default, default is parameter.empty and parameter.kind < parameter.KEYWORD_ONLY)
            continue
        groups[name] = kind
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            add(kind, field.name, hints[field.name], field.default, alone=False)

    @wraps(command)
    def with_options(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(one, only, default=own, annotation=kind) for one, (kind, own) in found.items()]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {name: kind for name, (kind, _) in found.items()}
    return with_options
