"""The eigenvalues of a fitted model and, if it is not exact, their bounds, as JSON and as text."""

from __future__ import annotations

from typing import Any

from bigpca.cli.output import plain

RECORDED, SHOWN = 10, 5  # leading eigenvalues in JSON, and in text
KERNEL_FACTS = ("kernel_evaluations", "trace_error", "negative_mass")


def describe_answer(model: Any) -> dict[str, Any]:
    """Return the leading eigenvalues of a model, and its certificate (None if it is exact to rounding).

    >>> import numpy as np
    >>> import bigpca
    >>> describe_answer(bigpca.PCA(1).fit(np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])))
    {'variance_captured': 1.0, 'explained_variance': [4.0], 'certificate': None}
    """
    certificate, turns = None, hasattr(model, "subspace_error_bounds_")
    if hasattr(model, "eigenvalue_bounds_"):
        certificate = {
            "reads": getattr(model, "n_passes_", None),
            "converged": getattr(model, "converged_", None),
            "eigenvalue_bounds": model.eigenvalue_bounds_[:RECORDED],
            "captured_variance_bounds": getattr(model, "captured_variance_bounds_", None),
            "subspace_error_bounds": model.subspace_error_bounds_[:RECORDED] if turns else None,
            "confidence": model.bounds_confidence_,
        }
    answer = {
        "variance_captured": float(model.explained_variance_ratio_.sum()),
        "explained_variance": model.explained_variance_[:RECORDED],
        "certificate": certificate,
    }
    if hasattr(model, "kernel_"):  # the bounds apply to the kernel matrix, not to a covariance
        answer |= {"eigenvalues": model.eigenvalues_[:RECORDED], "kernel": repr(model.kernel_)}
        answer |= {"landmarks": len(model.landmarks_)} if hasattr(model, "landmarks_") else {}
        answer |= {name: getattr(model, f"{name}_") for name in KERNEL_FACTS if hasattr(model, f"{name}_")}
    return plain(answer)  # type: ignore[no-any-return]


def answer_rows(answer: dict[str, Any]) -> dict[str, object]:
    """Return the result of :func:`describe_answer` as rows of a table.

    >>> from bigpca.cli.output import table
    >>> bounds = {"eigenvalue_bounds": [[3.9, 4.2]], "captured_variance_bounds": [0.8, 0.9], "confidence": 0.999}
    >>> certificate = {"reads": 3.1, "converged": True, **bounds}
    >>> print(table(answer_rows({"variance_captured": 0.85, "explained_variance": [4.0], "certificate": certificate})))
    variance captured  85.00 %, within 80.00 to 90.00 %
    eigenvalues        4, within 3.9 to 4.2
    bounds hold        with probability 0.999
    converged          yes
    """
    captured, certificate = f"{100 * answer['variance_captured']:.2f} %", answer["certificate"]
    values = answer.get("eigenvalues", answer["explained_variance"])[:SHOWN]
    facts: dict[str, object] = {"kernel": answer["kernel"]} if "kernel" in answer else {}
    facts |= {"landmarks": f"{answer['landmarks']:,}"} if "landmarks" in answer else {}
    facts |= {name.replace("_", " "): f"{answer[name]:.3g}" for name in KERNEL_FACTS if name in answer}
    if certificate is None:
        return facts | {"variance captured": captured, "eigenvalues": " ".join(f"{value:.6g}" for value in values)}
    if certificate["captured_variance_bounds"] is not None:
        low, high = (100 * share for share in certificate["captured_variance_bounds"])
        captured += f", within {low:.2f} to {high:.2f} %"
    confidence = certificate["confidence"]
    bounds = zip(values, certificate["eigenvalue_bounds"], strict=False)
    rows: dict[str, object] = facts | {
        "variance captured": captured,
        "eigenvalues": [f"{value:.6g}, within {lower:.6g} to {upper:.6g}" for value, (lower, upper) in bounds],
        "bounds hold": "always" if confidence == 1 else f"with probability {confidence:.6g}",
    }
    if certificate.get("subspace_error_bounds"):
        turned = " ".join(f"{sine:.2g}" for sine in certificate["subspace_error_bounds"][:SHOWN])
        rows["leading axes"] = f"sine of the angle to the true subspaces at most {turned}"
    if certificate["converged"] is not None:
        rows["converged"] = "yes" if certificate["converged"] else "NO"
    return rows
