"""Options shared by several commands, each declared once.

Parsing of option values: sizes, numbers of components, sketches. The options of a model: its method and the parameters
of the estimator, checked before anything slow is imported. Which estimator a command line names, and what its
constructor takes, read from its source without importing it. Shared options are declared once: a command takes a
dataclass, whose fields become its options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bigpca.errors import closest

if TYPE_CHECKING:
    from bigpca.sketches import Sketch


UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
RULES = ("mle", "elbow", "marchenko-pastur", "gavish-donoho")
SKETCHES = {"gaussian": "Gaussian", "sparse-sign": "SparseSign", "feature-hash": "FeatureHash", "srht": "SRHT"}


@contextmanager
def _rejecting(message: str, option: str | None = None) -> Iterator[None]:
    """Make a ValueError a wrong use of the command line, with a message of its own."""
    try:
        yield
    except ValueError:
        raise typer.BadParameter(message, param_hint=option) from None


def parse_size(text: str) -> int:
    """Parse a number of bytes such as "512MiB", "2GB" or "1e9".

    >>> parse_size("512MiB"), parse_size("2 GB")
    (536870912, 2000000000)
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    try:
        if match is None or not (size := int(float(match[1]) * UNITS[match[2]])):
            raise ValueError
    except (ValueError, KeyError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size. Write a number and a unit, such as 512MiB or 4GB.") from None
    return size


def parse_n_components(text: str) -> Any:
    """Parse a number of components: an integer, a fraction of the variance, the name of a rule, or "all".

    >>> parse_n_components("64"), parse_n_components("0.95"), parse_n_components("elbow"), parse_n_components("all")
    (64, 0.95, 'elbow', None)
    """
    if text == "all":
        return None
    if text in RULES:
        return text
    with _rejecting(
        f"{text!r} is not a number of components. Write an integer, a fraction of the variance such as 0.95, all, or "
        f"a rule: {', '.join(RULES)}.{closest(text, ('all', *RULES))}"
    ):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def parse_max_passes(text: str) -> int | None:
    """Parse a maximum number of reads: an integer from 2 on, or "none".

    >>> parse_max_passes("60"), parse_max_passes("none")
    (60, None)
    """
    if text != "none" and not (text.isdecimal() and int(text) >= 2):
        raise typer.BadParameter(
            f"{text!r} is not a number of reads. Write an integer of at least 2, or none for no limit.",
            param_hint="'--max-passes'",
        )
    return None if text == "none" else int(text)


def parse_sketch(text: str, seed: int) -> Sketch:
    """Parse a sketch: its kind and number of columns, or for images their sizes before and after.

    >>> parse_sketch("gaussian:500", 7), parse_sketch("downsample:3x8x8:3x4x4", 0)
    (Gaussian(seed=7, q=500), Downsample(seed=0, shape=(3, 8, 8), to=(3, 4, 4)))
    """
    from bigpca import sketches

    columns = re.fullmatch(rf"({'|'.join(SKETCHES)}):(\d+)", text)
    images = re.fullmatch(r"downsample:(\d+(?:x\d+)*):(\d+(?:x\d+)*)", text)
    try:
        if columns is not None:
            made: Sketch = getattr(sketches, SKETCHES[columns[1]])(int(columns[2]), seed=seed)
            return made
        if images is not None:
            shape, to = (tuple(int(size) for size in sizes.split("x")) for sizes in images.groups())
            return sketches.Downsample(shape, to, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a valid sketch: {error}") from None
    hint = closest(text.partition(":")[0], SKETCHES)
    raise typer.BadParameter(
        f"{text!r} is not a sketch.{hint} Write a kind ({', '.join(SKETCHES)}) and its columns, such as gaussian:500, "
        "or the sizes of images before and after, such as downsample:3x224x224:3x56x56."
    )


def parse_regularization(text: str) -> float | str:
    """Parse what is added to the within-class scatter: a number, or "pinv" for the pseudo-inverse.

    >>> parse_regularization("0.1"), parse_regularization("pinv")
    (0.1, 'pinv')
    """
    with _rejecting(f"{text!r} is neither pinv nor a number, such as 0.1.", "'--regularization'"):
        return text if text == "pinv" else float(text)


def parse_alphas(text: str) -> list[float]:
    """Parse penalties, separated by commas.

    >>> parse_alphas("0.1,10")
    [0.1, 10.0]
    """
    with _rejecting(f"{text!r} is not a list of penalties. Write numbers, such as 0.1,1,10.", "'--alphas'"):
        return [float(one) for one in text.split(",")]


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
        raise typer.BadParameter(f"{text!r} chooses nothing. Write a range such as 0:512, or positions such as 3,1,7.")
    return parts


def parse_fill(text: str) -> float | None:
    """Parse what is missing among stored numbers: nothing, or a number, whole numbers of any size exactly.

    >>> parse_fill("none"), parse_fill("-9223372036854775806"), parse_fill("9.96921e36")
    (None, -9223372036854775806, 9.96921e+36)
    """
    with _rejecting(f"{text!r} is neither none nor a number, such as -32767."):
        return None if text == "none" else int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


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


def parse_preprocess(text: str) -> Any:
    """Parse steps of preprocessing, separated by commas.

    >>> parse_preprocess("power:0.5,l2"), parse_preprocess("l2:keep")
    ([Power(exponent=0.5), L2(zero_rows='raise')], [L2(zero_rows='keep')])
    """
    import bigpca as bp

    made: list[Any] = []
    for step in text.lower().split(","):
        name, _, value = step.strip().partition(":")
        try:
            if name not in ("l2", "power"):
                raise ValueError(f"{step!r} is not a step; l2, l2:keep and power:0.5 are known")
            made.append(bp.rows.Power(_exponent(step, value)) if name == "power" else bp.rows.L2(value or "raise"))
        except ValueError as error:
            raise typer.BadParameter(f"{error}.", param_hint="'--preprocess'") from None
    return made


def _exponent(step: str, text: str) -> float:
    try:
        return float(text or 0.5)
    except ValueError:
        raise ValueError(
            f"{step!r} has no number after the colon; one in (0, 1] was expected, as in power:0.5"
        ) from None


def parse_scale(text: str) -> Any:
    """Parse a scale: a rule, or a file of one number for each column.

    >>> parse_scale("patterson"), parse_scale("patterson:4")
    (Patterson(ploidy=2), Patterson(ploidy=4))
    """
    import numpy as np

    import bigpca as bp

    name, _, ploidy = text.partition(":")
    try:
        return bp.rules.Patterson(int(ploidy or 2)) if name == "patterson" else np.load(text, allow_pickle=False)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a scale: {error}. Write patterson, patterson:4, or the path of a .npy file.",
            param_hint="'--scale-by'",
        ) from None


def parse_whitening(text: str) -> Any:
    """Parse a whitening: its power, and after colons its epsilon and "l2".

    >>> parse_whitening("0.25"), parse_whitening("0.5:1e-3:l2")
    (Whitening(power=0.25, epsilon=0.0, l2=False), Whitening(power=0.5, epsilon=0.001, l2=True))
    """
    import bigpca as bp

    parts = re.fullmatch(r"([^:]+)(?::([^:l]+))?(:l2)?", text.lower())
    with _rejecting(
        f"{text!r} is not a whitening. Write a power such as 0.5, a power and an epsilon such as 0.5:0.001, or add l2: "
        f"0.5:0:l2.", "'--whitening'",
    ):  # fmt: skip
        power, epsilon, l2 = ("", "", None) if parts is None else parts.groups()
        return bp.rules.Whitening(float(power), float(epsilon or 0), l2=l2 is not None)


MissingChunks = StrEnum("MissingChunks", ["RAISE", "FILL"])  # each value is its name in lower case


label_option = partial(typer.Option, rich_help_panel="Labels")
_rows = partial(typer.Option, rich_help_panel="What is a row")
_where = partial(typer.Option, rich_help_panel="Where it runs")

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="Zarr store, .npy, .npz, .h5, .parquet, .csv, .pt or .safetensors, folder of shards; several are shards.",
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
        _rows(
            metavar="PATTERN", help='What makes a row, as in einops: "n c h w -> (n h w) c"; else each sample is one.'
        ),
    ] = None
    reduce: Annotated[
        str | None, _rows(metavar="mean|max|gem", help='How to pool what the pattern leaves out: "n c h w -> n c".')
    ] = None
    axis: Annotated[
        list[str] | None,
        _rows(
            metavar="NAME=POSITIONS",
            help="Positions on an axis of the pattern: t=1: is all but the first (repeatable).",
        ),
    ] = None
    columns: Annotated[
        str | None, _rows(metavar="POSITIONS", help="The columns to use: 0:512, or 3,1,7, or names.")
    ] = None
    missing_value: Annotated[float | None, _rows(metavar="NUMBER", help="The code of missing values, such as -1.")] = (
        None
    )
    fill: Annotated[
        str | None,
        _rows(
            metavar="none|NUMBER", help="For netCDF: treat every stored number as a value (none), or all but this one."
        ),
    ] = None
    repeats: Annotated[
        str, _rows(metavar="warn|keep", help="Rows of several stores with the same key: keep says that they are meant.")
    ] = "warn"

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of :func:`bigpca.open`."""
        axes = dict(parse_axis(one) for one in self.axis or ())
        columns = None if self.columns is None else parse_positions(self.columns)
        code = self.missing_value
        coded = {} if code is None else {"missing_value": int(code) if code.is_integer() else code}
        filled = {} if self.fill is None else {"fill": parse_fill(self.fill)}
        what = {"pattern": self.pattern, "reduce": self.reduce, "columns": columns, **coded, **axes}
        chosen = {"missing_chunks": str(self.missing_chunks), "repeats": self.repeats}
        return {"member": self.member, **chosen, **filled, **what}

    @property
    def arguments(self) -> list[str]:
        """The options of a command line that are not at their defaults."""
        texts = {"--member": self.member, "--pattern": self.pattern, "--reduce": self.reduce, "--columns": self.columns}
        texts["--fill"] = self.fill
        if self.missing_chunks is not MissingChunks.RAISE:
            texts["--missing-chunks"] = str(self.missing_chunks)
        if self.missing_value is not None:
            texts["--missing-value"] = f"{self.missing_value:g}"
        if self.repeats != "warn":
            texts["--repeats"] = self.repeats
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
    targets: Annotated[
        str | None,
        label_option(metavar="SOURCE", help="cca, plssvd, ridge: rows of Y, in the order of SOURCE."),
    ] = None
    key: Annotated[
        str | None,
        label_option(
            metavar="COLUMN",
            help="Key column in the files of labels and weights, if it is not found automatically.",
        ),
    ] = None
    by_position: Annotated[
        bool, label_option("--by-position", help="Labels and weights are in the order of the rows; keys are ignored.")
    ] = False
    weights: Annotated[
        str | None,
        label_option(
            metavar="FILE[::COLUMN]",
            help="How often each row counts: numbers, matched to rows like labels.",
        ),
    ] = None


# What is asked for -> the estimator. A new estimator is one row.
ESTIMATORS = {
    ("pca",): "PCA",
    ("pca", "sketch"): "ApproximatePCA",
    ("pca", "kernel"): "KernelPCA",
    ("pca", "kernel", "landmarks"): "NystromKernelPCA",
    ("pca", "kernel", "sketch"): "ApproximateKernelPCA",
    ("fisher",): "FisherDiscriminantAnalysis",
    ("roweis",): "RoweisDiscriminantAnalysis",
    ("roweis", "kernel"): "KernelRoweisDiscriminantAnalysis",
    ("roweis", "kernel", "landmarks"): "KernelRoweisDiscriminantAnalysis",
    ("supervised",): "SupervisedPCA",
    ("supervised", "kernel"): "KernelSupervisedPCA",
    ("supervised", "kernel", "landmarks"): "KernelSupervisedPCA",
    ("random-projection",): "SupervisedRandomProjection",
    ("scored",): "ScoredPCA",
    ("cca",): "CCA",
    ("plssvd",): "PLSSVD",
    ("ridge",): "Ridge",
}
METHODS = tuple(dict.fromkeys(method for method, *_ in ESTIMATORS))
PCA = "pca"  # the one method without labels or targets
OF_TARGETS = ("cca", "plssvd", "ridge")
NEEDED = {"labels": "FILE::COLUMN", "targets": "SOURCE"}
# Options that are not called as the parameter they set.
PARAMETERS = {
    "seed": "random_state",
    "landmarks": "n_landmarks",
    "features": "n_features",
    "select": "n_features_to_select",
    "scale_by": "scale",
    "whitening": "whiten",
}


def estimator_of(method: str, **variants: Any) -> str:
    """Return the name of the estimator of a method in the variants whose options are given.

    Parameters
    ----------
    method : str
        One of ``METHODS``.
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
    if "landmarks" in key and "kernel" not in key:
        raise typer.BadParameter(
            "--landmarks requires --kernel. Add one, such as --kernel rbf, or leave out --landmarks."
        )
    possible = [" ".join(f"--{name}" for name in own) or "neither" for one, *own in ESTIMATORS if one == method]
    given = " and ".join(f"--{name}" for name in key[1:])
    others = [one for one in METHODS if (one, *key[1:]) in ESTIMATORS]
    instead = f" With {given}: --method {' or '.join(others)}." if others else ""
    raise typer.BadParameter(f"--method {method} cannot be used with {given}; it takes {', '.join(possible)}.{instead}")


# The parameters of each constructor and the settings of its runs, with their defaults, so that no estimator is imported
# to explain an option; a test compares them with the signatures.
RUN_SETTINGS = ("solve_threads", "max_kernel_evaluations")
_EVERY = {
    "n_components": None, "preprocess": None, "nan_policy": "raise", "memory_limit": None, "solve_threads": None,
}  # fmt: skip
_ITERATED = {**_EVERY, "solver": "auto", "tol": 1e-3, "max_passes": 10}
_LINEAR = {"center": True, "scale": False, "whiten": False}
_KERNEL = {
    "kernel": "linear", "gamma": None, "degree": 3, "coef0": 1, "random_state": 0, "max_kernel_evaluations": 2e11,
    "fit_inverse_transform": False,
}  # fmt: skip
_LANDMARKS = {"n_landmarks": None, "sampling": "rpcholesky"}
_LABELLED = {**_EVERY, "missing_labels": "raise"}
_LABEL_KERNEL = {"label_kernel": "linear", "label_gamma": None}
_FISHER = {"robust": False, "regularization": None}
_ROWEIS = {**_FISHER, "r1": 0.5, "r2": 0.5, "normalize": False}
_SIDES = {"n_components": 2, "scale": True, "preprocess_y": None}
_LABELLED_ITERATED = {"solver": "auto", "tol": 1e-3, "max_passes": 20}
DEFAULTS: dict[str, dict[str, Any]] = {
    "PCA": {**_ITERATED, **_LINEAR, "random_state": 0},
    "ApproximatePCA": {**_EVERY, **_LINEAR, "sketch": None, "approximation": "nystrom"},
    "KernelPCA": {**_ITERATED, **_KERNEL},
    "NystromKernelPCA": {**_EVERY, **_KERNEL, **_LANDMARKS, "kernel": "rbf", "components_from": "rows"},
    "ApproximateKernelPCA": {**_EVERY, **_KERNEL, "kernel": "rbf", "sketch": None, "approximation": "nystrom"},
    "FisherDiscriminantAnalysis": {**_LABELLED, **_LABELLED_ITERATED, **_FISHER},
    "RoweisDiscriminantAnalysis": {**_LABELLED, **_LABELLED_ITERATED, **_ROWEIS},
    "KernelRoweisDiscriminantAnalysis": {**_LABELLED, **_ROWEIS, **_KERNEL, **_LANDMARKS, "kernel": "rbf"},
    "SupervisedPCA": {**_LABELLED, **_LABEL_KERNEL},
    "KernelSupervisedPCA": {
        **_LABELLED, **_LABEL_KERNEL, **_KERNEL, **_LANDMARKS, "kernel": "rbf", "solver": "landmarks",
    },
    "SupervisedRandomProjection": {**_LABELLED, "n_features": 100, "label_gamma": None, "random_state": 0},
    "ScoredPCA": {
        **_EVERY, "n_features_to_select": 0.5, "estimator": None, "folds": 5, "random_state": 0,
        "missing_labels": "raise",
    },
    "CCA": {**_EVERY, **_SIDES, "regularization": 0.0},
    "PLSSVD": {**_EVERY, **_SIDES},
    "Ridge": {**_EVERY, "alphas": 1.0, "cv": 5, "fit_intercept": True, "alpha_per_target": False},
}  # fmt: skip
del DEFAULTS["Ridge"]["n_components"]


def default_of(option: str) -> str | None:
    """Return the default that the estimators give to an option's parameter, for display; None if it is unset or hidden.

    >>> default_of("tol"), default_of("max_passes"), default_of("memory_limit")
    ('0.001', '10; fisher, roweis: 20', None)
    """
    parameter = PARAMETERS.get(option, option)
    methods: dict[str, list[str]] = {}
    for (method, *_), name in ESTIMATORS.items():
        value = DEFAULTS[name].get(parameter)
        if not (value is None or value is False):
            shown = f"{value:g}".replace("e+", "e") if isinstance(value, float) else str(value)
            methods.setdefault(shown, []).append(method)
    first, *others = methods.items() or [("", [])]
    listed = [f"{', '.join(dict.fromkeys(names))}: {value}" for value, names in others]
    return "; ".join([first[0], *listed]) or None


_model = partial(typer.Option, rich_help_panel="Model")
_kernel = partial(typer.Option, rich_help_panel="Kernels: nonlinear components")
_iteration = partial(typer.Option, rich_help_panel="Few reads: eigenvalues to a tolerance")
_sketch = partial(typer.Option, rich_help_panel="One read: an approximation with bounds")


NanPolicy = StrEnum("NanPolicy", ["RAISE", "OMIT", "MEAN"])
MissingLabels = StrEnum("MissingLabels", ["RAISE", "DROP"])
Approximation = StrEnum("Approximation", ["NYSTROM", "TUTORIAL", "RITZ"])


@dataclass(frozen=True)
class Estimator:
    """The method, and the estimator's parameters as typed; None leaves a parameter at the estimator's default."""

    method: Annotated[str, _model(metavar="METHOD", autocompletion=lambda: METHODS, help=f"{', '.join(METHODS)}.")] = (
        PCA
    )
    n_components: Annotated[
        str | None,
        _model(
            "--n-components",
            "-k",
            metavar="K",
            autocompletion=lambda: ("all", *RULES),
            help=f"How many: an integer, a fraction such as 0.95, all (default; 2 for cca and plssvd), or a rule: "
            f"{', '.join(RULES)}.",
        ),
    ] = None
    center: Annotated[bool, _model(help="Subtract the mean (--no-center: latent semantic analysis).")] = True
    scale: Annotated[
        bool | None,
        _model("--scale/--no-scale", help="Divide each feature by its standard deviation."),
    ] = None
    scale_by: Annotated[
        str | None, _model(metavar="RULE|FILE", help="patterson, patterson:PLOIDY, or the divisors in a .npy file.")
    ] = None
    whiten: Annotated[bool, _model("--whiten", help="Scores of unit variance.")] = False
    whitening: Annotated[
        str | None,
        _model(metavar="POWER", help="Divide scores by a power of the variances: 0.25, 0.5:EPSILON, or 0.5:0:l2."),
    ] = None
    preprocess: Annotated[
        str | None, _model(metavar="STEPS", help="Applied to each row first: l2, power:0.5, or both: power:0.5,l2.")
    ] = None
    nan_policy: Annotated[
        NanPolicy | None, _model(help="Rows with NaN: an error, left out, or filled in by means of columns.")
    ] = None
    solver: Annotated[
        str | None,
        _model(
            metavar="NAME",
            help="auto, covariance, dot, krylov; with a kernel auto, dense, krylov, features; "
            "supervised: landmarks, pairs.",
        ),
    ] = None
    seed: Annotated[int | None, _model(metavar="INT", min=0, help="Seed of everything random.")] = None
    memory_limit: Annotated[str | None, _model(metavar="SIZE", help="Reject a plan over this size, e.g. 2GiB.")] = None
    solve_threads: Annotated[int | None, _model(metavar="INT", min=1, help="BLAS threads of the final solve.")] = None
    missing_labels: Annotated[
        MissingLabels | None, label_option(help="Rows without a label: an error, or used without one.")
    ] = None
    label_kernel: Annotated[
        str | None, label_option(metavar="linear|rbf", help="supervised: how labels are compared.")
    ] = None
    r1: Annotated[
        float | None,
        label_option(metavar="0..1", min=0, max=1, help="roweis: weight of the labels (supervised PCA: 1)."),
    ] = None
    r2: Annotated[
        float | None,
        label_option(metavar="0..1", min=0, max=1, help="roweis: weight of the scatter within (Fisher: 1)."),
    ] = None
    robust: Annotated[
        bool, label_option("--robust", help="fisher, roweis: raise small eigenvalues within classes.")
    ] = False
    regularization: Annotated[
        str | None,
        label_option(
            metavar="NUMBER|pinv", help="fisher, roweis: added to the within-class scatter; cca: to both covariances."
        ),
    ] = None
    alphas: Annotated[
        str | None, label_option(metavar="NUMBERS", help="ridge: penalties, such as 0.1,1,10; folds choose one.")
    ] = None
    cv: Annotated[int | None, label_option(metavar="INT", help="ridge: folds by row number.")] = None
    features: Annotated[
        int | None,
        label_option(metavar="INT", min=1, help="random-projection: number of random features of the labels."),
    ] = None
    select: Annotated[
        float | None, label_option(metavar="NUMBER", min=0, help="scored: number or share of columns to keep.")
    ] = None
    kernel: Annotated[
        str | None,
        _kernel(
            metavar="NAME",
            help="linear, cosine, rbf and laplacian (gamma), poly (gamma, degree, coef0), sigmoid (gamma, coef0); "
            "for histograms ChiSquare, Hellinger, HistogramIntersection, JensenShannon, ...",
        ),
    ] = None
    gamma: Annotated[
        float | None, _kernel(metavar="NUMBER", help="For rbf, poly, sigmoid, laplacian; 1 / columns if not given.")
    ] = None
    degree: Annotated[int | None, _kernel(metavar="INT", min=1, help="Of poly.")] = None
    coef0: Annotated[float | None, _kernel(metavar="NUMBER", help="For poly and sigmoid.")] = None
    landmarks: Annotated[
        int | None,
        _kernel(metavar="INT", min=1, help="Nystrom approximation with this many landmark rows, for large n."),
    ] = None
    sampling: Annotated[
        str | None, _kernel(metavar="NAME", help="How landmarks are chosen: rpcholesky, uniform, kmeans, ...")
    ] = None
    max_kernel_evaluations: Annotated[
        float | None, _kernel(metavar="NUMBER", min=1, help="Reject a plan that needs more.")
    ] = None
    tol: Annotated[
        float | None, _iteration(metavar="NUMBER", help="krylov: relative error of the eigenvalues at which it stops.")
    ] = None
    max_passes: Annotated[
        str | None,
        _iteration(metavar="INT|none", help="krylov: maximum number of reads, or none to iterate until tol is met."),
    ] = None
    sketch: Annotated[
        str | None,
        _sketch(
            metavar="KIND:COLUMNS",
            help="gaussian:500, sparse-sign:500, feature-hash:2000, srht:500, "
            "or for images downsample:3x224x224:3x56x56.",
        ),
    ] = None
    approximation: Annotated[
        Approximation | None, _sketch(help="How components are computed from the sketch; ritz needs one more read.")
    ] = None

    @property
    def name(self) -> str:
        """The estimator that the options choose."""
        if self.method not in METHODS:
            raise typer.BadParameter(
                f"{self.method!r} is not one of {', '.join(METHODS)}.{closest(self.method, METHODS)}",
                param_hint="'--method'",
            )
        return estimator_of(self.method, kernel=self.kernel, landmarks=self.landmarks, sketch=self.sketch)

    def check(self, given: Supervision) -> None:
        """Reject options that the estimator does not have, before anything slow is imported.

        Parameters
        ----------
        given : Supervision
            Labels and targets.

        Raises
        ------
        typer.BadParameter
        """
        if self.n_components is not None:
            parse_n_components(self.n_components)
        if self.memory_limit is not None:
            parse_size(self.memory_limit)
        if self.max_passes is not None:
            parse_max_passes(self.max_passes)
        if self.approximation is not None and self.sketch is None:
            raise typer.BadParameter(
                "--approximation requires --sketch. Add one, such as --sketch gaussian:500, or leave out "
                "--approximation."
            )
        for first, second in (("scale", "scale_by"), ("whiten", "whitening")):
            if getattr(self, first) and getattr(self, second) is not None:
                option = second.replace("_", "-")
                raise typer.BadParameter(f"--{first} and --{option} set the same parameter. Leave out --{first}.")
        known = DEFAULTS[self.name]
        unused = [name for name in self._given() if PARAMETERS.get(name, name) not in known]
        if "sketch" in known and "seed" in unused:
            unused.remove("seed")  # of the sketch
        if unused:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            what = (
                f"--sketch needs one read and does not use {options}"
                if self.sketch
                else f"{self.name} does not use {options}"
            )
            raise typer.BadParameter(f"{what}. Leave out {options}{_instead(unused, self)}.")
        needs = {PCA: "", **dict.fromkeys(OF_TARGETS, "targets")}.get(self.method, "labels")
        for kind, value in NEEDED.items():
            there = getattr(given, kind) is not None
            if there and kind != needs:
                others = OF_TARGETS if kind == "targets" else [one for one in METHODS[1:] if one not in OF_TARGETS]
                raise typer.BadParameter(
                    f"--method {self.method} does not use {kind}. Choose another method ({', '.join(others)}), or "
                    f"leave out --{kind}."
                )
            if kind == needs and not there:
                raise typer.BadParameter(f"--method {self.method} requires {kind}. Add --{kind} {value}.")

    def build(self) -> Any:
        """Create the estimator, which itself raises for values out of range."""
        import bigpca

        known = DEFAULTS[self.name]
        arguments: dict[str, Any] = {
            PARAMETERS.get(name, name): str(value) if isinstance(value, StrEnum) else value
            for name, value in self._given().items()
        }
        if self.memory_limit is not None:
            arguments["memory_limit"] = parse_size(self.memory_limit)
        parsers = {
            "scale": parse_scale, "whiten": parse_whitening, "preprocess": parse_preprocess,
            "max_passes": parse_max_passes, "regularization": parse_regularization, "alphas": parse_alphas,
            "n_components": parse_n_components,
        }  # fmt: skip
        for name, parse in parsers.items():
            if isinstance(arguments.get(name), str):
                arguments[name] = parse(arguments[name])
        if self.select is not None and self.select >= 1:
            arguments["n_features_to_select"] = int(self.select)
        if self.sketch is not None:
            arguments["sketch"] = parse_sketch(self.sketch, self.seed or 0)
        from bigpca.estimators.kernel.kernel_pca import FITS as KERNEL_FITS
        from bigpca.estimators.linear.choosing import FITS
        from bigpca.estimators.supervised.kernel_supervised import SOLVERS as KERNEL_SUPERVISED_SOLVERS

        solvers = ("auto", *(FITS if self.kernel is None else KERNEL_FITS))
        if self.method == "supervised":
            solvers = KERNEL_SUPERVISED_SOLVERS
        if self.solver is not None and self.solver not in solvers:
            hint = closest(self.solver, solvers)
            raise typer.BadParameter(
                f"{self.solver!r} is not one of {', '.join(map(repr, solvers))}.{hint}", param_hint="'--solver'"
            )
        from bigpca.kernels import as_kernel

        try:
            as_kernel(self.kernel or "linear")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="'--kernel'") from None
        own = {name: value for name, value in arguments.items() if name in known and name not in RUN_SETTINGS}
        return getattr(bigpca, self.name)(**own)

    def settings(self) -> AbstractContextManager[None]:
        """Return the block in which the estimator is planned and fitted."""
        from bigpca.settings import config

        return config(solve_threads=self.solve_threads, max_kernel_evaluations=self.max_kernel_evaluations)

    def _given(self) -> dict[str, Any]:
        """Return the options that set a parameter and are not at their default."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "method"}
        return {name: value for name, value in own.items() if value is not None and value is not _DEFAULTS[name]}


_DEFAULTS = {field.name: field.default for field in fields(Estimator)}


def _instead(unused: list[str], estimator: Estimator) -> str:
    """Return what else would make sense of options that the chosen estimator does not have."""
    if estimator.sketch is not None:
        return ", or leave out --sketch for a solver that iterates to a tolerance"
    wanted = {PARAMETERS.get(name, name) for name in unused}
    able = [variant for variant, name in ESTIMATORS.items() if wanted <= set(DEFAULTS[name])]
    if not able:
        return ""
    method, *variants = min(able, key=lambda variant: (variant[0] != estimator.method, len(variant)))
    added = [f"--{name}" for name in variants if getattr(estimator, name) is None]
    return ", or add " + " and ".join([f"--method {method}"] * (method != estimator.method) + added)


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
