"""What a model file holds, as JSON and as text, from its attributes and a few small arrays: no estimator is imported.

``describe`` gives the JSON record of a model, ``shown`` its text: what it is, then a table of the leading components
with their eigenvalues, bounds and shares. ``bigpca fit`` shows the file that it has just written in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bigpca.cli.output import plain

RECORDED, SHOWN = 10, 5  # leading components in JSON, and in text
SUBSPACES = ("residuals", "deficits", "lowest", "upper")
ARRAYS = (
    "explained_variance", "eigenvalues", "eigenvalue_bounds", "captured_variance_bounds", "moments_counts",
    "moments_weights", "rotation", *(f"subspace_{name}" for name in SUBSPACES),
)  # fmt: skip
HELD = "inner_"  # prefix of the arrays of a model that another one holds
FACTS = ("trace_error", "negative_mass", "n_unlabelled")


class Stored(Protocol):
    """A model as arrays and JSON values: :class:`bigpca.storage.Group`, or one that is about to be saved."""

    @property
    def kind(self) -> str: ...
    @property
    def arrays(self) -> dict[str, Any]: ...
    @property
    def attributes(self) -> dict[str, Any]: ...


def describe_file(path: str) -> dict[str, Any]:
    """Return the JSON record of a saved model; reads its attributes and the arrays of at most k values.

    Raises
    ------
    ModelFormatError
        As :func:`bigpca.load`, but only what is read is checked.
    """
    from bigpca.storage import MODEL_FORMAT, read_group

    group = read_group(path, kind=None, newest=MODEL_FORMAT, names=[*ARRAYS, *(HELD + name for name in ARRAYS)])
    return describe(group, group.shapes)


def describe(stored: Stored, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the JSON record of a model: its class and parameters, sizes, leading eigenvalues, and certificate.

    Parameters
    ----------
    stored : Stored
        With the arrays named in ``ARRAYS``.
    shapes : mapping of str to tuple of int
        Shapes of all its arrays.

    Returns
    -------
    dict
        ``certificate`` is None if the answer is exact to rounding; values that the model does not have are left out.
    """
    arrays, attributes = stored.arrays, stored.attributes
    parameters = attributes["parameters"]
    if attributes.get("inner") is not None:  # of selected columns, or a rotation: another model is held
        from bigpca.storage import MODEL_FORMAT, Group

        inner = Group(attributes["inner"]["kind"], MODEL_FORMAT, _held(arrays), attributes["inner"]["attributes"])
        own = {name: value for name, value in parameters.items() if value is not None and name != "estimator"}
        named = {"estimator": stored.kind, "parameters": own, "n_features_in": attributes["n_features"]}
        named |= {"n_features_selected": shapes["selected"][0]} if "selected" in shapes else {}
        named |= _pattern(attributes)
        held = describe(inner, _held(shapes))
        return {**(_rotated(held, inner.arrays, arrays["rotation"]) if "rotation" in arrays else held), **plain(named)}
    record: dict[str, Any] = {
        "estimator": stored.kind,
        "parameters": {name: value for name, value in parameters.items() if value is not None},
        **_pattern(attributes),
    }
    if parameters.get("kernel") is not None:
        record["kernel"] = kernel_text(parameters)
    values = arrays.get("explained_variance", arrays.get("eigenvalues"))
    wide = shapes.get("components", (0, attributes.get("n_features")))
    known = {
        "n_components": None if values is None else len(values),
        "n_features_in": attributes.get("n_features", wide[-1]),
        "n_samples": attributes["n_samples"] if "n_samples" in attributes else _counted(arrays),
        "n_omitted": attributes.get("n_omitted", attributes.get("omitted")),
        "solver": attributes.get("solver"),
        "kernel_evaluations": attributes.get("evaluations"),
        "landmarks": shapes["references"][0] if {"references", "fact_landmark_transform"} <= set(shapes) else None,
        **{name: attributes.get("facts", {}).get(name) for name in FACTS},
    }
    record |= {name: value for name, value in known.items() if value is not None}
    return plain(record | ({} if values is None else _answer(stored)))  # type: ignore[no-any-return]


def _rotated(record: dict[str, Any], arrays: Mapping[str, Any], T: Any) -> dict[str, Any]:
    """Return the record of a PCA with the variances of its rotated components, as :class:`bigpca.RotatedPCA` has them.

    With loadings ``A = V' sqrt(Lambda)`` and T, they are ``diag((T'T)^-1 T' Lambda T)``. Bounds of eigenvalues and of
    leading axes are of no rotated component.
    """
    import numpy as np

    variances = arrays["explained_variance"]
    turned = np.diag(np.linalg.inv(T.T @ T) @ (T.T * variances) @ T)[:RECORDED]
    unit = record["explained_variance"][0] / variances[0]
    share = record["explained_variance_ratio"][0] / variances[0]
    found = record | {"explained_variance": turned * unit, "explained_variance_ratio": turned * share}
    if record.get("certificate") is not None:
        found["certificate"] = record["certificate"] | {"eigenvalue_bounds": None, "subspace_error_bounds": None}
    return plain(found)  # type: ignore[no-any-return]


def _pattern(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return what is a row, if the model was fitted on rows of a pattern."""
    if attributes.get("rows") is None:
        return {}
    from bigpca.data.patterns import RowPattern

    return {"pattern": str(RowPattern.from_json(attributes["rows"]))}


def _counted(arrays: Mapping[str, Any]) -> int | None:
    """Return the rows of all classes, where a model has classes; counts of weighted rows are sums of weights."""
    if "moments_weights" in arrays:
        return int(arrays["moments_weights"][2])
    return int(arrays["moments_counts"].sum()) if "moments_counts" in arrays else None


def _held(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(HELD): value for name, value in values.items() if name.startswith(HELD)}


def _answer(stored: Stored) -> dict[str, Any]:
    arrays, attributes = stored.arrays, stored.attributes
    answer: dict[str, Any] = {"certificate": _certificate(arrays, attributes)}
    if "eigenvalues" in arrays:
        answer["eigenvalues"] = arrays["eigenvalues"][:RECORDED]
    weight = attributes.get("facts", {}).get("weight_sums", [attributes.get("n_samples", 1)])[0]
    scale = weight - 1 if "total" in attributes and weight > 1 else 1
    variances = arrays.get("explained_variance")
    total = attributes.get("total_variance", attributes.get("total"))
    if variances is None and (total is None or "n_unlabelled" in attributes["facts"]):  # eigenvalues of labels
        return answer
    values = arrays["eigenvalues"] if variances is None else variances
    shares = values / total if total and total > 0 else 0.0 * values
    return answer | {
        "variance_captured": float(shares.sum()),
        "explained_variance": values[:RECORDED] / scale,
        "explained_variance_ratio": shares[:RECORDED],
    }


def _certificate(arrays: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any] | None:
    certified = attributes.get("certificate")
    if certified is None or "eigenvalue_bounds" not in arrays:
        return None
    turned = None
    if "subspace_upper" in arrays:
        from bigpca.solvers.subspaces import SubspaceBounds

        turned = SubspaceBounds(**{name: arrays[f"subspace_{name}"] for name in SUBSPACES}).errors[:RECORDED]
    return {
        "reads": certified["n_passes"],
        "converged": certified["converged"],
        "eigenvalue_bounds": arrays["eigenvalue_bounds"][:RECORDED],
        "captured_variance_bounds": arrays.get("captured_variance_bounds"),
        "subspace_error_bounds": turned,
        "confidence": certified["confidence"],
    }


def kernel_text(parameters: Mapping[str, Any]) -> str:
    """Return a stored kernel as text.

    >>> kernel_text({"kernel": {"kernel": "RBF", "gamma": 0.1}}), kernel_text({"kernel": "rbf", "gamma": None})
    ('RBF(gamma=0.1)', 'rbf')
    """
    kernel = parameters["kernel"]
    if isinstance(kernel, Mapping):
        values = ", ".join(
            f"{name}={kernel_text({'kernel': value}) if isinstance(value, Mapping) else repr(value)}"
            for name, value in kernel.items()
            if name != "kernel"
        )
        return f"{kernel['kernel']}({values})"
    gamma = parameters.get("gamma")
    return str(kernel) if gamma is None else f"{kernel}, gamma = {gamma:g}"


def facts(record: Mapping[str, Any]) -> dict[str, object]:
    """Return what is known of an answer as a whole, as rows of a table.

    >>> facts({"kernel": "RBF(gamma=0.1)", "kernel_evaluations": 90_000, "certificate": None})
    {'kernel': 'RBF(gamma=0.1)', 'kernel evaluations': '90,000'}
    """
    rows: dict[str, object] = {name: record[name] for name in ("pattern", "kernel") if name in record}
    for name in ("kernel_evaluations", "landmarks", "n_unlabelled", "n_features_selected"):
        if name in record:
            rows[name.removeprefix("n_").replace("_", " ")] = f"{record[name]:,}"
    rows |= {name.replace("_", " "): f"{record[name]:.3g}" for name in FACTS[:2] if name in record}
    certificate = record.get("certificate")
    if "variance_captured" in record:
        rows["captured"] = f"{100 * record['variance_captured']:.2f} % of the variance"
    if certificate is None:
        return rows
    if certificate["captured_variance_bounds"] is not None:
        low, high = (100 * share for share in certificate["captured_variance_bounds"])
        rows["captured"] = f"{rows['captured']} ({low:.2f} to {high:.2f})"
    confidence = certificate["confidence"]
    rows["bounds hold"] = "always" if confidence == 1 else f"with probability {confidence:.6g}"
    if certificate.get("subspace_error_bounds"):
        turned = " ".join(f"{sine:.2g}" for sine in certificate["subspace_error_bounds"][:SHOWN])
        rows["leading axes"] = f"sine of the angle to the true subspaces at most {turned}"
    if certificate["converged"] is not None:
        rows["converged"] = "yes" if certificate["converged"] else "NO"
    return rows


def components_table(record: Mapping[str, Any]) -> list[str]:
    """Return the leading components as lines of a table, with their shares of the variance where they have one.

    >>> certificate = {"eigenvalue_bounds": [[3.9, 4.2]]}
    >>> answer = {"explained_variance": [4.0], "explained_variance_ratio": [0.8], "n_components": 1}
    >>> print("\\n".join(components_table(answer | {"certificate": certificate})))
    component  eigenvalue          %  so far
            1  4 (3.9 to 4.2)  80.00   80.00
    """
    values = record.get("eigenvalues", record.get("explained_variance", []))[:SHOWN]
    bounds = (record.get("certificate") or {}).get("eigenvalue_bounds") or [None] * len(values)
    shares = record.get("explained_variance_ratio", [])[:SHOWN]
    rows = [["component", "eigenvalue"] + (["%", "so far"] if len(shares) else [])]
    for index, (value, bound) in enumerate(zip(values, bounds, strict=False)):
        text = f"{value:.6g}" if bound is None else f"{value:.6g} ({bound[0]:.6g} to {bound[1]:.6g})"
        rows.append([f"{index + 1}", text])
        if len(shares):
            rows[-1] += [f"{100 * shares[index]:.2f}", f"{100 * sum(shares[: index + 1]):.2f}"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    more = record.get("n_components", len(values)) - len(values)
    return [*lines, f"... and {more:,} more"] if more > 0 else lines
