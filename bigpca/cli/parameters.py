"""The options of a model: its method and the parameters of the estimator, checked before anything slow is imported."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from bigpca.cli.methods import ESTIMATORS, METHODS, PARAMETERS, PCA, estimator_of, parameters_of
from bigpca.cli.options import MissingChunks, label_option
from bigpca.cli.parsing import (
    RULES,
    parse_n_components,
    parse_preprocess,
    parse_scale,
    parse_size,
    parse_sketch,
    parse_whitening,
)
from bigpca.errors import closest

_model = partial(typer.Option, rich_help_panel="Model")
_kernel = partial(typer.Option, rich_help_panel="Kernels: nonlinear components")
_iteration = partial(typer.Option, rich_help_panel="Few reads: eigenvalues to a tolerance")
_sketch = partial(typer.Option, rich_help_panel="One read: an approximation with bounds")


class NanPolicy(StrEnum):
    """What to do about rows with NaN or infinity."""

    RAISE = "raise"
    OMIT = "omit"
    MEAN = "mean"


class MissingLabels(StrEnum):
    """What to do about rows without a label."""

    RAISE = "raise"
    DROP = "drop"


class Core(StrEnum):
    """How components are computed from a sketch."""

    NYSTROM = "nystrom"
    TUTORIAL = "tutorial"
    RITZ = "ritz"


@dataclass(frozen=True)
class Estimator:
    """The method, and the estimator's parameters as typed; None leaves a parameter at the estimator's default."""

    method: Annotated[str, _model(metavar="METHOD", autocompletion=lambda: METHODS, help=f"{', '.join(METHODS)}.")] = (
        PCA
    )
    n_components: Annotated[
        str,
        _model(
            "--n-components",
            "-k",
            metavar="K",
            autocompletion=lambda: ("all", *RULES),
            help=f"How many: an integer, a fraction such as 0.95, all, or a rule: {', '.join(RULES)}.",
        ),
    ] = "all"
    center: Annotated[bool, _model(help="Subtract the mean (--no-center: latent semantic analysis).")] = True
    scale: Annotated[bool, _model("--scale", help="Divide each feature by its standard deviation.")] = False
    scale_by: Annotated[
        str | None, _model(metavar="RULE|FILE", help="patterson, patterson:PLOIDY, or the divisors in a .npy file.")
    ] = None
    whiten: Annotated[bool, _model("--whiten", help="Scores of unit variance.")] = False
    whitening: Annotated[
        str | None,
        _model(metavar="POWER", help="Scores by a power of the variances: 0.25, 0.5:EPSILON, or 0.5:0:l2."),
    ] = None
    preprocess: Annotated[
        str | None, _model(metavar="STEPS", help="Of each row, first: l2, power:0.5, or both: power:0.5,l2.")
    ] = None
    nan_policy: Annotated[
        NanPolicy | None, _model(help="Rows with NaN: an error, left out, or filled in by means of columns.")
    ] = None
    solver: Annotated[
        str | None,
        _model(metavar="NAME", help="auto, covariance, dot, krylov; with a kernel auto, dense, krylov, features."),
    ] = None
    seed: Annotated[int | None, _model(metavar="INT", min=0, help="Of all that is random.")] = None
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
    features: Annotated[
        int | None,
        label_option(metavar="INT", min=1, help="random-projection: number of random features of the labels."),
    ] = None
    select: Annotated[
        float | None, label_option(metavar="NUMBER", min=0, help="scored: how many columns are kept, or which share.")
    ] = None
    kernel: Annotated[
        str | None,
        _kernel(metavar="NAME", help="rbf, poly, sigmoid, cosine, laplacian, linear, ChiSquare, Hellinger, ..."),
    ] = None
    gamma: Annotated[
        float | None, _kernel(metavar="NUMBER", help="Of rbf, poly, sigmoid, laplacian; 1 / columns if not given.")
    ] = None
    degree: Annotated[int | None, _kernel(metavar="INT", min=1, help="Of poly.")] = None
    coef0: Annotated[float | None, _kernel(metavar="NUMBER", help="Of poly and sigmoid.")] = None
    landmarks: Annotated[
        int | None, _kernel(metavar="INT", min=1, help="Nystrom approximation by this many rows: for many rows.")
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
    max_passes: Annotated[int | None, _iteration(metavar="INT", min=2, help="krylov: maximum number of reads.")] = None
    sketch: Annotated[
        str | None,
        _sketch(
            metavar="KIND:COLUMNS",
            help="gaussian:500, sparse-sign:500, feature-hash:2000, srht:500, "
            "or for images downsample:3x224x224:3x56x56.",
        ),
    ] = None
    core: Annotated[
        Core | None, _sketch(help="How components are computed from the sketch; ritz needs one more read.")
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

    def check(self, labelled: bool = False) -> None:
        """Reject options that the estimator does not have, before anything slow is imported.

        Parameters
        ----------
        labelled : bool
            Whether labels are given.

        Raises
        ------
        typer.BadParameter
        """
        parse_n_components(self.n_components)
        if self.memory_limit is not None:
            parse_size(self.memory_limit)
        self._check_core()
        for first, second in (("scale", "scale_by"), ("whiten", "whitening")):
            if getattr(self, first) and getattr(self, second) is not None:
                option = second.replace("_", "-")
                raise typer.BadParameter(f"--{first} and --{option} set the same parameter. Leave out --{first}.")
        known = parameters_of(self.name)
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
        if self.method == PCA and labelled:
            others = ", ".join(METHODS[1:])
            raise typer.BadParameter(
                f"--method pca does not use labels. Choose another method ({others}), or leave out --labels."
            )
        if self.method != PCA and not labelled:
            raise typer.BadParameter(f"--method {self.method} requires labels. Add --labels FILE::COLUMN.")

    def build(self, missing_chunks: MissingChunks, workers_timeout: float) -> Any:
        """Create the estimator, which itself raises for values out of range."""
        import bigpca

        known = parameters_of(self.name)
        arguments: dict[str, Any] = {
            PARAMETERS.get(name, name): str(value) if isinstance(value, StrEnum) else value
            for name, value in self._given().items()
        }
        if self.memory_limit is not None:
            arguments["memory_limit"] = parse_size(self.memory_limit)
        for name, parse in (("scale", parse_scale), ("whiten", parse_whitening), ("preprocess", parse_preprocess)):
            if isinstance(arguments.get(name), str):
                arguments[name] = parse(arguments[name])
        if self.select is not None and self.select >= 1:
            arguments["n_features_to_select"] = int(self.select)
        if self.sketch is not None:
            arguments["sketch"] = parse_sketch(self.sketch, self.seed or 0)
        arguments |= {
            "n_components": parse_n_components(self.n_components),
            "missing_chunks": str(missing_chunks),
            "workers_timeout": workers_timeout,
        }
        self._check_solver()
        self._check_kernel()
        return getattr(bigpca, self.name)(**{name: value for name, value in arguments.items() if name in known})

    def _check_solver(self) -> None:
        from bigpca.estimators.kernel.choosing import FITS as KERNEL_FITS
        from bigpca.estimators.linear.choosing import FITS

        known = ("auto", *(FITS if self.kernel is None else KERNEL_FITS))
        if self.solver is not None and self.solver not in known:
            hint = closest(self.solver, known)
            raise typer.BadParameter(
                f"{self.solver!r} is not one of {', '.join(map(repr, known))}.{hint}", param_hint="'--solver'"
            )

    def _check_kernel(self) -> None:
        from bigpca.kernels import as_kernel

        try:
            as_kernel(self.kernel or "linear")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="'--kernel'") from None

    def _given(self) -> dict[str, Any]:
        """Return the options that set a parameter and are not at their default."""
        own = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("method", "n_components")
        }
        return {name: value for name, value in own.items() if value is not None and value is not _DEFAULTS[name]}

    def _check_core(self) -> None:
        if self.core is not None and self.sketch is None:
            raise typer.BadParameter(
                "--core requires --sketch. Add one, such as --sketch gaussian:500, or leave out --core."
            )


_DEFAULTS = {field.name: field.default for field in fields(Estimator)}


def _instead(unused: list[str], estimator: Estimator) -> str:
    """Return what else would make sense of options that the chosen estimator does not have."""
    if estimator.sketch is not None:
        return ", or leave out --sketch for a solver that iterates to a tolerance"
    wanted = {PARAMETERS.get(name, name) for name in unused}
    able = [variant for variant, name in ESTIMATORS.items() if wanted <= set(parameters_of(name))]
    if not able:
        return ""
    method, *variants = min(able, key=lambda variant: (variant[0] != estimator.method, len(variant)))
    added = [f"--{name}" for name in variants if getattr(estimator, name) is None]
    return ", or add " + " and ".join([f"--method {method}"] * (method != estimator.method) + added)
