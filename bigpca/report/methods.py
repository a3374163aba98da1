"""The paragraph for a paper, its citations, and how a model was made."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import is_dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from bigpca.errors import format_bytes
from bigpca.planning import format_estimate, format_seconds
from bigpca.plots.numbers import fitted, name_of, shares_or_none, whole_of
from bigpca.plots.style import counted, percent
from bigpca.report.lights import counted_reads
from bigpca.report.records import Table

CITATIONS = {
    "PCA": "Hotelling, H. (1933). Analysis of a complex of statistical variables into principal components. "
    "Journal of Educational Psychology, 24, 417-441.",
    "moments": "Chan, T. F., Golub, G. H. & LeVeque, R. J. (1983). Algorithms for computing the sample variance: "
    "analysis and recommendations. The American Statistician, 37(3), 242-247.",
    "krylov": "Musco, C. & Musco, C. (2015). Randomized block Krylov methods for stronger and faster approximate "
    "singular value decomposition. Advances in Neural Information Processing Systems, 28.",
    "sketch": "Tropp, J. A., Yurtsever, A., Udell, M. & Cevher, V. (2017). Fixed-rank approximation of a "
    "positive-semidefinite matrix from streaming data. Advances in Neural Information Processing Systems, 30.",
    "kernel": "Schölkopf, B., Smola, A. & Müller, K.-R. (1998). Nonlinear component analysis as a kernel "
    "eigenvalue problem. Neural Computation, 10(5), 1299-1319.",
    "landmarks": "Williams, C. K. I. & Seeger, M. (2001). Using the Nyström method to speed up kernel machines. "
    "Advances in Neural Information Processing Systems, 13.",
    "Fisher": "Fisher, R. A. (1936). The use of multiple measurements in taxonomic problems. Annals of Eugenics, "
    "7(2), 179-188.",
    "supervised": "Barshan, E., Ghodsi, A., Azimifar, Z. & Zolghadri Jahromi, M. (2011). Supervised principal "
    "component analysis: visualization, classification and regression on subspaces and submanifolds. Pattern "
    "Recognition, 44(7), 1357-1371.",
    "Roweis": "Ghojogh, B., Karray, F. & Crowley, M. (2019). Roweis discriminant analysis: a generalized subspace "
    "learning method. arXiv:1910.05437.",
    "scored": "Bair, E., Hastie, T., Paul, D. & Tibshirani, R. (2006). Prediction by supervised principal "
    "components. Journal of the American Statistical Association, 101(473), 119-137.",
}
_BY_CLASS = {
    "PCA": ("PCA",), "ApproximatePCA": ("PCA",), "KernelPCA": ("kernel",), "ApproximateKernelPCA": ("kernel",),
    "NystromKernelPCA": ("kernel", "landmarks"), "FisherDiscriminantAnalysis": ("Fisher",),
    "SupervisedPCA": ("supervised",), "SupervisedRandomProjection": ("supervised",),
    "KernelSupervisedPCA": ("supervised", "kernel"), "RoweisDiscriminantAnalysis": ("Roweis",),
    "KernelRoweisDiscriminantAnalysis": ("Roweis", "kernel"), "ScoredPCA": ("scored", "PCA"),
}  # fmt: skip
_BY_SOLVER = {"covariance": "moments", "krylov": "krylov", "sketch": "sketch"}
_NAMES = {
    "PCA": "principal component analysis (PCA)",
    "ApproximatePCA": "approximate principal component analysis",
    "KernelPCA": "kernel PCA",
    "ApproximateKernelPCA": "approximate kernel PCA",
    "NystromKernelPCA": "kernel PCA by the Nyström method",
    "FisherDiscriminantAnalysis": "Fisher's discriminant analysis",
    "SupervisedPCA": "supervised PCA",
    "SupervisedRandomProjection": "supervised random projection",
    "KernelSupervisedPCA": "kernel supervised PCA",
    "RoweisDiscriminantAnalysis": "Roweis discriminant analysis",
    "KernelRoweisDiscriminantAnalysis": "kernel Roweis discriminant analysis",
    "ScoredPCA": "PCA of the features with the highest scores",
}


def method_name(model: Any) -> str:
    """Return what the model does, in words."""
    return _NAMES.get(name_of(model), name_of(model))


def citations_of(model: Any) -> tuple[str, ...]:
    """Return what a paper cites: the method, and the algorithm of the solver."""
    solver = str(getattr(fitted(model), "solver_", ""))
    keys = [*_BY_CLASS.get(name_of(model), ()), *(key for name, key in _BY_SOLVER.items() if name in solver)]
    return tuple(CITATIONS[key] for key in dict.fromkeys(keys))


def methods_of(model: Any) -> str:
    """Return a paragraph for the methods section of a paper."""
    inner = fitted(model)
    n, d, k = (int(getattr(inner, f"n_{name}_", 0)) for name in ("samples", "features_in", "components"))
    versions = f"version {version('bigpca')}; Python {platform.python_version()}, NumPy {np.__version__}"
    text = f"The {n:,} rows of {model.n_features_in_ or d:,} features were reduced to {counted(k, 'component')} by "
    text += f"{method_name(model)}, computed with bigpca ({versions})"
    text += f" with the solver {inner.solver_}" if hasattr(inner, "solver_") else ""
    if getattr(inner, "solver_", "") == "krylov":
        text += f" (relative tolerance {inner.tol:g})"
    text += f" in {counted_reads(inner.n_passes_)} of the data" if hasattr(inner, "n_passes_") else ""
    text += f", with the kernel {inner.kernel_}" if hasattr(inner, "kernel_") else ""
    text = " ".join(filter(None, (f"{text}.", _values(model, inner), _share(inner))))
    if getattr(inner, "n_omitted_", 0):
        text += f" Rows omitted for missing values: {inner.n_omitted_:,}."
    seed = vars(inner).get("seed_") if hasattr(inner, "eigenvalue_bounds_") else None  # exact answers need none
    return text.strip() + ("" if seed is None else f" The random seed was {seed}.")


def _values(model: Any, inner: Any) -> str:
    """Return what was done to the values of rows and scores, in sentences; empty for the mean alone."""
    found = [
        f"Each row was first mapped by {_named(one.preprocess)}."
        for one in ((model,) if model is inner else (model, inner))
        if getattr(one, "preprocess", None) is not None
    ]
    center, scale, whiten = getattr(inner, "center", True), getattr(inner, "scale", False), getattr(inner, "whiten", 0)
    if not isinstance(center, bool):
        found.append("The columns were centred about given numbers.")
    if not isinstance(scale, bool) or scale:
        by = "their standard deviations" if isinstance(scale, bool) else _named(scale)
        found.append(f"The columns were divided by {by}.")
    if whiten:
        found.append("The scores were whitened" + ("." if whiten is True else f" by {_named(whiten)}."))
    return " ".join(found)


def _named(value: Any) -> str:
    """Return a record, or records in order, as Python writes them; "given numbers" for a vector."""
    if is_dataclass(value):
        return repr(value)
    records = isinstance(value, list | tuple) and all(map(is_dataclass, value))
    return " and then ".join(map(repr, value)) if records else "given numbers"


def _share(model: Any) -> str:
    ratio = shares_or_none(model)
    if ratio is None:
        return ""
    text = f"The components capture {percent(float(ratio.sum()))} of {whole_of(model)}"
    if hasattr(model, "captured_variance_bounds_"):
        low, high = model.captured_variance_bounds_
        certain = "" if model.bounds_confidence_ == 1 else f", with probability {model.bounds_confidence_:.6g}"
        return f"{text} (certified to lie between {percent(low)} and {percent(high)}{certain})."
    return f"{text}."


def made_of(model: Any, *, provenance: bool) -> tuple[tuple[str, str], ...]:
    """Return how a model was made, by name; without paths, host and command where ``provenance`` is False."""
    record = provenance_of(model)
    if record is None:
        return (("provenance", "not recorded: the model is of an older version, or was made of one"),)
    names = ("source", "member", "call", "date") if provenance else ("date",)
    known = [(name, getattr(record, name, None)) for name in names]
    for name, text in (("rows added", "added_rows"), ("models merged", "merged_models")):
        count = getattr(record, text, None)
        known.append((name, count and f"{count:,}"))
    versions = getattr(record, "versions", None) or {}
    known.append(("versions", ", ".join(f"{name} {value}" for name, value in versions.items())))
    return tuple((name, str(value)) for name, value in known if value)


def provenance_of(model: Any) -> Any:
    """Return the record of how a model was made, or None: its attributes are read where they exist."""
    return getattr(model, "provenance_", None)


def plan_table(model: Any) -> Table:
    """Return what was planned beside what was measured."""
    record = provenance_of(model)
    formats: dict[str, tuple[Callable[[Any], str], ...]] = {
        "planned_": (counted_reads, format_estimate, format_bytes), "": (counted_reads, format_seconds, format_bytes)
    }  # fmt: skip
    planned, measured = (
        [
            None if (value := getattr(record, prefix + name, None)) is None else as_text(value)
            for name, as_text in zip(names, formats[prefix], strict=True)
        ]
        for prefix, names in (("planned_", ("reads", "seconds", "bytes")), ("", ("reads", "seconds", "peak_bytes")))
    )
    if planned[0] is not None and record.planned_max_reads is not None:
        planned[0] += f", at most {counted_reads(record.planned_max_reads)}"
    rows = zip(("reads of the data", "time", "memory above idle"), planned, measured, strict=True)
    return Table("Plan and measurement", ("", "planned", "measured"), tuple(rows))
