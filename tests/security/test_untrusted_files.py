"""Files of arrays are not trusted: their headers promise nothing that is believed, and no object in them comes to
life.
"""

import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bigpca as bp
from bigpca.data.label_files import read_label_file
from bigpca.errors import CorruptedChunkError
from tests.security.attacks import Explosive, little_memory, npy_header

X = np.random.default_rng(0).normal(size=(20, 6)).astype("f4")


def zipped(path: Path, content: bytes, method: int) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "method", "message"),
    [
        (
            npy_header((10**12, 8)) + bytes(64),
            zipfile.ZIP_DEFLATED,
            "declares 32,000,000,000,000 bytes of values, but has",
        ),
        (
            npy_header((10**12, 8)) + bytes(64),
            zipfile.ZIP_STORED,
            "declares 32,000,000,000,000 bytes of values, but has",
        ),
        (
            npy_header((16, 1)) + bytes(64),
            zipfile.ZIP_BZIP2,
            "compressed by method 12; stored or deflated was expected",
        ),
    ],
    ids=["deflated", "stored", "another method"],
)
def test_an_npz_that_promises_more_than_it_holds_is_rejected(
    content: bytes, method: int, message: str, tmp_path: Path
) -> None:
    with little_memory(), pytest.raises(CorruptedChunkError, match=message):
        bp.open(zipped(tmp_path / "x.npz", content, method))


def test_an_npy_of_labels_that_promises_more_than_it_holds_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(npy_header((10**12,), "<i8") + bytes(64))
    with pytest.raises(
        CorruptedChunkError,
        match=r"y\.npy is not a complete .npy file .64 bytes of values, but its header states 8,000,000,000,000",
    ):
        read_label_file(str(tmp_path / "y.npy"))


def test_object_arrays_in_npz_are_rejected_without_unpickling(tmp_path: Path) -> None:
    objects = np.empty((2, 2), object)
    objects[...] = Explosive()
    np.savez(tmp_path / "x.npz", x=objects)
    np.savez_compressed(tmp_path / "z.npz", x=objects)
    for name in ("x.npz", "z.npz"):
        with pytest.raises(TypeError, match="dtype object cannot be used"):
            bp.open(tmp_path / name)


def test_a_torch_file_is_never_unpickled(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.eye(3), "y": Explosive()}, tmp_path / "x.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Explosive()))
    for name in ("x.pt", "old.pt"):
        with pytest.raises(CorruptedChunkError, match=r"torch cannot read .*weights_only=True\)"):
            bp.open(tmp_path / name)
    nested: list[Any] = []
    for _ in range(99):  # 2 to the 99th lists
        nested = [nested, nested]
    torch.save(nested, tmp_path / "x.pt")
    with little_memory(), pytest.raises(ValueError, match=r"x\.pt holds 0 arrays with two dimensions"):
        bp.open(tmp_path / "x.pt")


@pytest.mark.parametrize(
    "header",
    [[], {"x": 3}, {"x": {}}, {"x": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 8]}},
     {"x": {"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 8]}},
     {"x": {"dtype": "F32", "shape": [1, 2], "data_offsets": [-9, 8]}}],
)  # fmt: skip
def test_a_safetensors_header_is_not_believed(header: Any, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with (
        little_memory(),
        pytest.raises(CorruptedChunkError, match=r"x\.safetensors is not a safetensors file: its header lacks"),
    ):
        bp.open(tmp_path / "x.safetensors")


def safetensors(path: Path, tensors: dict[str, Any], held: int) -> Path:
    text = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(held))
    return path


def tensor(start: int, stop: int, shape: tuple[int, ...] = (4, 2), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("tensors", "held", "message"),
    [
        ({"x": tensor(0, 24)}, 24, "is at bytes 0 to 24; 0 to 32 were expected"),
        ({"x": tensor(0, 40)}, 40, "is at bytes 0 to 40; 0 to 32 were expected"),
        ({"x": tensor(8, 40)}, 40, "is at bytes 8 to 40; 0 to 32 were expected"),
        ({"x": tensor(0, 32), "y": tensor(0, 32)}, 32, "is at bytes 0 to 32; 32 to 64 were expected"),
        ({"x": tensor(0, 32), "y": tensor(16, 48)}, 48, "is at bytes 16 to 48; 32 to 64 were expected"),
        ({"x": tensor(0, 32), "y": tensor(36, 68)}, 68, "is at bytes 36 to 68; 32 to 64 were expected"),
        ({"x": tensor(0, 32), "y": tensor(16, 40, (3,), "F9")}, 40, "16 to 40; 32 to the next tensor were expected"),
        ({"x": tensor(0, 32)}, 31, "holds 31 bytes of tensors, but its header states 32"),
        ({"x": tensor(0, 32)}, 33, "holds 33 bytes of tensors, but its header states 32"),
        ({"x": tensor(0, 32) | {"data_offsets": [0]}}, 32, "its header lacks"),
        ({"x": tensor(32, 0)}, 32, "its header lacks"),
        ({"x": tensor(0, 32) | {"data_offsets": "ab"}}, 32, "its header lacks"),
    ],
)  # fmt: skip
def test_tensors_fill_a_safetensors_file_without_holes_and_overlaps(
    tensors: dict[str, Any], held: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptedChunkError, match=message):
        bp.open(safetensors(tmp_path / "x.safetensors", tensors, held), member="x")


def test_tensors_beside_others_of_dtypes_that_numpy_lacks_are_read(tmp_path: Path) -> None:
    tensors = {
        "z": tensor(0, 6, (3,), "BF16"),
        "x": tensor(6, 38),
        "e": tensor(38, 38, (0, 9)),
        "h": tensor(38, 40, (5,), "F9"),
    }
    path = safetensors(tmp_path / "x.safetensors", tensors, 40)
    np.testing.assert_array_equal(bp.open(path, member="x").compute(), np.zeros((4, 2)))
    with pytest.raises(TypeError, match="tensor 'h' has dtype F9, which NumPy does not support"):
        bp.open(path, member="h")


def test_a_page_of_parquet_whose_checksum_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    column = pa.FixedSizeListArray.from_arrays(X.ravel(), 6)
    pq.write_table(pa.table({"v": column}), path, write_page_checksum=True, compression="none", use_dictionary=False)
    np.testing.assert_array_equal(bp.open(path).compute(), X)
    content = bytearray(path.read_bytes())
    content[content.index(X[3].tobytes()) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptedChunkError, match=r"row group 0, column 'v' cannot be decoded .*CRC"):
        bp.open(path).compute()


def test_a_negative_shape_in_a_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy_header((-8, 2)) + bytes(64))
    with pytest.raises(
        CorruptedChunkError, match=r"x\.npy is not a complete .*its header states the impossible .*\(-8, 2\)"
    ):
        bp.open(tmp_path / "x.npy")


def test_a_filter_plugin_of_hdf5_is_not_loaded(tmp_path: Path) -> None:
    """HDF5 loads plugins from a folder that the environment names, never from the file; an absent one is an error."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("x", X.shape, X.dtype, chunks=X.shape, compression=511, allow_unknown_filter=True)
        dataset.id.write_direct_chunk((0, 0), X.tobytes())
    with pytest.raises(CorruptedChunkError, match=r"rows 0:20 of x cannot be decoded .*plugin"):
        bp.open(tmp_path / "x.h5").compute()
