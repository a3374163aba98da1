"""Linear maps of rows as fitted models give them to other libraries: ONNX, NumPy, torch, FAISS."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bigpca.arrays import Integers, Matrix, Vector
from bigpca.errors import required
from bigpca.passes.reading.row_maps import RowMap, RowPreprocessor
from bigpca.storage.carriers import reject_file, write_file

IR_VERSION, OPSET = 10, 17  # onnxruntime rejects the newest ones that onnx writes by default


class MatrixAndOffset(NamedTuple):
    """Scores are ``X @ A.T + b``.

    Attributes
    ----------
    A : ndarray of shape (k, d), float64
    b : ndarray of shape (k,), float64
    """

    A: Matrix
    b: Vector


@dataclass(frozen=True)
class LinearMap:
    """Scores are ``(x - centre) @ matrix'``: without the cancellation that ``x @ A' + b`` has far from the origin.

    Attributes
    ----------
    matrix : ndarray of shape (k, d)
    centre : ndarray of shape (d,)
    unit : bool
        Whether the scores of each row are divided by their norm, which is not linear.
    """

    matrix: Matrix
    centre: Vector
    unit: bool = False

    @property
    def affine(self) -> MatrixAndOffset:
        """The same as a matrix and an offset.

        Raises
        ------
        ValueError
            If the scores are divided by their norm.
        """
        if self.unit:
            raise ValueError(
                "whiten = Whitening(l2=True) divides the scores of each row by their norm, which is not linear. Export "
                "a model without l2 and normalise its scores, or use to_sklearn or to_onnx."
            )
        return MatrixAndOffset(self.matrix, -self.matrix @ self.centre)

    def placed(self, columns: Integers, d: int) -> LinearMap:
        """Return the map of rows of d columns if this map uses only some of them."""
        matrix, centre = np.zeros((len(self.matrix), d)), np.zeros(d)
        matrix[:, columns], centre[columns] = self.matrix, self.centre
        return LinearMap(matrix, centre, self.unit)


class LinearRowMap(RowMap):
    """A row map that other libraries can compute."""

    @abstractmethod
    def linear(self, d: int) -> LinearMap:
        """Return the same map of rows of d columns; raises ValueError if it is none."""

    @abstractmethod
    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as fitted transformers of scikit-learn, with what else is known of the model."""


def write_onnx(
    linear: LinearMap,
    path: str | os.PathLike[str],
    *,
    overwrite: bool,
    before: Sequence[RowPreprocessor] = (),
    missing: Sequence[float] = (),
) -> Path | str:
    """Write a model of ONNX with the input ``rows`` (n, d) and the output ``scores`` (n, k), both float32.

    The centre is subtracted before the product, as ``transform`` does. ``before`` is applied to rows first; rows of
    zeros remain zero. Rows that equal one of ``missing`` somewhere, or hold NaN or
    infinity, have scores of NaN.

    Raises
    ------
    ValueError
        For preprocessing that ONNX has no operators for, and the extension of another format.
    ImportError
        If onnx is not installed.
    OutputExistsError
        If the path exists and ``overwrite`` is False.
    """
    onnx = required("onnx", "to_onnx", "onnx")
    reject_file(path, overwrite, ".onnx")
    k, d = linear.matrix.shape
    centre = linear.centre.astype(np.float32)
    rest = (centre.astype(np.float64) - linear.centre) @ linear.matrix.T  # what the rounding of the centre leaves
    values = {"centre": centre, "matrix": linear.matrix.astype(np.float32), "rest": rest.astype(np.float32)}
    made, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes: list[Any] = []
    rows = "rows"
    for i, code in enumerate(missing):
        values |= {f"missing_{i}": np.array(code, np.float32), "nan": np.array(np.nan, np.float32)}
        nodes += [
            made.make_node("Equal", [rows, f"missing_{i}"], [f"absent_{i}"]),
            made.make_node("Where", [f"absent_{i}", "nan", rows], [f"decoded_{i}"]),
        ]
        rows = f"decoded_{i}"
    # x - x is 0, or NaN where x is not finite: its sum reaches all scores, whatever operations make of NaN.
    values["columns"] = np.array([1], np.int64)
    nodes += [
        made.make_node("Sub", [rows, rows], ["zeros"]),
        made.make_node("ReduceSum", ["zeros", "columns"], ["gap"], keepdims=1),
    ]
    for i, one in enumerate(before):
        form, names = one.onnx_form(), {"rows": rows, "result": f"rows_{i}"}
        values |= {f"{name}_{i}": np.array(value, np.float32) for name, value in form.constants.items()}
        for node in form.nodes:
            inputs, outputs = ([names.get(name, f"{name}_{i}") for name in of] for of in (node.inputs, (node.output,)))
            nodes.append(made.make_node(node.operation, inputs, outputs, **node.attributes))
        rows = names["result"]
    scores = "whole" if linear.unit else "known"
    nodes += [
        made.make_node("Sub", [rows, "centre"], ["centred"]),
        made.make_node("Gemm", ["centred", "matrix", "rest"], [scores], transB=1),
    ]
    nodes += [made.make_node("LpNormalization", [scores], ["known"], axis=1, p=2)] if linear.unit else []
    nodes.append(made.make_node("Add", ["known", "gap"], ["scores"]))
    graph = made.make_graph(
        nodes,
        "bigpca",
        [made.make_tensor_value_info("rows", kind, ["n", d])],
        [made.make_tensor_value_info("scores", kind, ["n", k])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    opset = [made.make_opsetid("", OPSET)]
    model = made.make_model(graph, ir_version=IR_VERSION, opset_imports=opset, producer_name="bigpca")
    onnx.checker.check_model(model)
    return write_file(path, model.SerializeToString(), overwrite=overwrite)


def write_npz(path: str | os.PathLike[str], *, overwrite: bool, **arrays: NDArray[np.float64]) -> Path | str:
    """Write arrays to an .npz file; raises as :func:`write_onnx`."""
    reject_file(path, overwrite, ".npz")
    content = BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return write_file(path, content.getvalue(), overwrite=overwrite)


def torch_layer(linear: LinearMap) -> Any:
    """Return a ``torch.nn.Linear`` in float32.

    Raises
    ------
    ImportError
        If torch is not installed.
    """
    torch = required("torch", "to_torch", "torch")
    A, b = linear.affine
    # without initial values, which would draw from torch's generator
    layer = torch.nn.utils.skip_init(torch.nn.Linear, A.shape[1], A.shape[0], dtype=torch.float32)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.array(A, order="C")))  # no negative strides, which one row may have
        layer.bias.copy_(torch.from_numpy(b))
    return layer


def faiss_transform(linear: LinearMap) -> Any:
    """Return a trained ``faiss.LinearTransform``, for an ``IndexPreTransform``.

    Raises
    ------
    ImportError
        If faiss is not installed.
    """
    faiss = required("faiss", "to_faiss", "faiss-cpu")
    A, b = (np.ascontiguousarray(one, np.float32) for one in linear.affine)
    transform = faiss.LinearTransform(A.shape[1], A.shape[0], True)
    faiss.copy_array_to_vector(A.ravel(), transform.A)
    faiss.copy_array_to_vector(b, transform.b)
    transform.is_trained = True
    transform.set_is_orthonormal()
    return transform
