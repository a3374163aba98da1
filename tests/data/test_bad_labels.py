"""Labels that are broken, ambiguous or of no use are rejected, with the numbers and what was expected."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import bigpca as bp
from bigpca.data.labels import ClassLabels, open_labels
from bigpca.errors import CorruptedChunkError, MissingChunksError
from bigpca.storage import files
from tests.data.label_savers import INTEGERS, NAMES, N, save_npy, save_parquet, save_zarr, save_zarr_group

CSV_FAULTS = [
    ("a,b\n1,2\n", "", ValueError, r"y.csv has 2 columns. Name the one that holds the labels, .*: a, b\."),
    ("a,b\n1,2\n", "::c", KeyError, r"y.csv has no column 'c'. Name the one .*: a, b\."),
    ("a,a\n1,2\n", "::a", KeyError, r"has 2 columns 'a'\. Rename them: a, a\."),
    ("1\n2\n", "", ValueError, r"are 1 labels for 2 rows"),
    ("", "::a", KeyError, r"has no column 'a'. Name .*: nothing"),
    ("a,b\n1,2\n3\n", "::a", ValueError, r"y.csv cannot be read as .*Row #3: Expected 2 columns, got 1"),
    ("a,b\n1,2\n\n3,4\n", "::a", ValueError, r"there are 3 labels for 2 rows"),
    ("a\n1\n\n2\n3,4\n", "", ValueError, r"Row #5: Expected 1 columns, got 2"),
    ("a\n1,2\n", "", ValueError, r"Row #2: Expected 1 columns, got 2"),
    ('a,b\n"1,2\n3,4\n', "::a", CorruptedChunkError, r"y.csv cannot be read as comma-separated UTF-8 text .*Repair"),
    (b"a,b\n\xff,2\n", "::a", CorruptedChunkError, r"cannot be read as comma-separated UTF-8 text"),
    (b"\xffa\n1\n2\n", "", CorruptedChunkError, r"cannot be read as comma-separated UTF-8 text"),
]


@pytest.mark.parametrize(("text", "column", "error", "match"), CSV_FAULTS)
def test_tables_that_cannot_be_read_are_named_with_the_line_or_columns(
    text: Any, column: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    (tmp_path / "y.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(error, match=match):
        open_labels(f"{tmp_path}/y.csv{column}", 2)


# Faults.

ragged = [[0, 1], [1]]
FAULTS: list[tuple[Any, int, dict[str, Any], type[Exception], str]] = [
    ([0, 1, 1], 4, {}, ValueError, r"there are 3 labels for 4 rows. Give one label for each row"),
    ([0, 1, 1], 2, {}, ValueError, r"there are 3 labels for 2 rows"),
    (
        [],
        2,
        {},
        ValueError,
        r"there are 0 labels for 2 rows\. Give one label for each row, in the order of the rows\.$",
    ),
    (
        pd.MultiIndex.from_product([[0, 1], ["a"]]),
        2,
        {},
        TypeError,
        r"y is pandas.MultiIndex.*y\.get_level_values\(0\)",
    ),
    (np.zeros((0, 3)), 2, {}, ValueError, r"there are 0 labels for 2 rows"),
    ([None, None], 2, {"missing": "drop"}, ValueError, r"all 2 labels are missing"),
    ([np.nan, np.nan], 2, {}, ValueError, r"all 2 labels are missing"),
    (np.full((2, 3), np.nan), 2, {"missing": "drop"}, ValueError, r"all 2 labels are missing"),
    (
        [7, 7, 7],
        3,
        {},
        ValueError,
        r"all 3 labels belong to 1 class \(7\); at least 2 classes were expected. Use an unsup",
    ),
    (["a", None], 2, {"missing": "drop"}, ValueError, r"all 1 labels belong to 1 class \(a\)"),
    ([1.5, np.inf, -np.inf], 3, {}, ValueError, r"2 of 3 targets are infinite \(rows 1, 2\); finite numbers were exp"),
    ([[1.5, np.inf], [0, 0]], 2, {}, ValueError, r"1 of 2 targets are infinite \(row 0\)"),
    (
        np.zeros((2, 2, 2)),
        2,
        {},
        ValueError,
        r"labels \(ndarray\) have shape \(2, 2, 2\); \(n,\), or \(n, m\) with m >= 1",
    ),
    (np.zeros((2, 0)), 2, {}, ValueError, r"have shape \(2, 0\)"),
    (3, 2, {}, ValueError, r"labels \(int\) have shape \(\)"),
    ({"a": 1}, 2, {}, TypeError, r"y is dict of several arrays"),
    (
        ["a", 1],
        2,
        {},
        TypeError,
        r"labels hold integers \(1\) and strings \('a'\), but must be all numbers, all strings or all b",
    ),
    (np.array([1.5, "a"], object), 2, {}, TypeError, r"labels hold real numbers \(1.5\) and strings \('a'\)"),
    (["a", b"a"], 2, {}, TypeError, r"labels hold bytes \(b'a'\) and strings"),
    (ragged, 2, {}, TypeError, r"y is list of rows of different lengths, from 1 to 2"),
    ([1j, 2], 2, {}, TypeError, r"labels hold complex numbers \(1j\) and integers \(2\)"),
    (np.array([1j, 2]), 2, {}, TypeError, r"labels have dtype complex128; integers, .* Take real and imaginary parts"),
    (np.array(["2020"], "M8[D]"), 1, {}, TypeError, r"labels have dtype datetime64\[D\]; .* Convert to numbers of sec"),
    (np.zeros(2, "i4,f4"), 2, {}, TypeError, r"labels have dtype \[\('f0'"),
    ([2**64, 0], 2, {}, ValueError, r"the label 18446744073709551616 does not fit its type; integers of 64 bits"),
    ([2**63, -1], 2, {}, ValueError, r"the label 9223372036854775808 does not fit its type"),
    ([10**400, 0.5], 2, {}, ValueError, r"the label 1000000000000000000000000000000000000\.\.\. does not fit"),
    (["a\0", "a"], 2, {}, ValueError, r"1 labels end in a zero character, such as 'a\\x00'; NumPy strings drop"),
    (
        [[0, 1], [1, 0]],
        2,
        {},
        ValueError,
        r"shape \(2, 2\) and dtype int64; one column of classes, .*argmax",
    ),
    (
        [[0.5, 0.5], [1, 0]],
        2,
        {"kind": "classes"},
        ValueError,
        r"\(2, 2\) and dtype float64; one column of classes",
    ),
    ([["a", "b"]] * 2, 2, {}, ValueError, r"labels have shape \(2, 2\) and dtype <U1; one column"),
    (
        [0.5, 1],
        2,
        {"kind": "classes"},
        ValueError,
        r"1 of 2 labels are not integers below 2\^53, such as 0\.5; classes were",
    ),
    ([np.inf, 1], 2, {"kind": "classes"}, ValueError, r"1 of 2 labels are not integers below 2\^53, such as inf"),
    (
        [2.0**54, 1],
        2,
        {"kind": "classes"},
        ValueError,
        r"1 of 2 labels are not integers below 2\^53, such as 1\.80144e\+16",
    ),
    (["a", "b"], 2, {"kind": "targets"}, ValueError, r"targets have dtype <U1; real numbers were expected. Convert"),
]


@pytest.mark.parametrize(("y", "n", "options", "error", "match"), FAULTS, ids=[row[-1][:40] for row in FAULTS])
def test_labels_that_cannot_be_used_are_rejected_with_the_numbers(
    y: Any, n: Any, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        open_labels(y, n, **options)


def test_one_class_is_allowed_in_a_batch() -> None:
    labels = open_labels([7, 7], 2, min_classes=1)
    assert isinstance(labels, ClassLabels)
    assert labels.classes.tolist() == [7]
    with pytest.raises(ValueError, match=r"all 3 labels belong to 2 class.* at least 3 classes were expected"):
        open_labels([7, 7, 8], 3, min_classes=3)


def test_paths_without_labels_say_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.npy holds no labels: a .npy or .csv file, Parquet or a Zarr"):
        open_labels(tmp_path / "nowhere.npy", 2)
    with pytest.raises(FileNotFoundError, match=r"holds no labels"):
        open_labels(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match=r"no Parquet files were found for .*none_\*.parquet"):
        open_labels(tmp_path / "none_*.parquet", 2)
    (tmp_path / "y.txt").write_text("1")
    with pytest.raises(
        ValueError, match=r"y.txt has an unknown format for labels: .npy, .csv, Parquet, a Zarr directory or Ann"
    ):
        open_labels(tmp_path / "y.txt", 2)


def test_pickled_objects_are_never_loaded_and_broken_arrays_are_named(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "went off",))

    np.save(tmp_path / "o.npy", np.array([Bomb(), Bomb()], object), allow_pickle=True)
    with pytest.raises(
        TypeError, match=r"o.npy holds pickled objects, which are never loaded. Save numbers or strings"
    ):
        open_labels(tmp_path / "o.npy", 2)
    assert not (tmp_path / "went off").exists()
    path = save_npy(tmp_path, INTEGERS)
    for kept in (0, 9, 60, 140):
        whole = path.read_bytes()
        path.write_bytes(whole[:kept])
        with pytest.raises(CorruptedChunkError, match=r"y.npy is not a complete .npy file .*Write it again"):
            open_labels(path, N)
        path.write_bytes(whole)
    with pytest.raises(KeyError, match=r"y.npy is one array, so it has no member 'a'. Leave ::a out"):
        open_labels(f"{path}::a", N)


def test_an_index_that_its_dictionary_does_not_have_is_named_by_the_file(tmp_path: Path) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 20, pa.int8()), pa.array(["a", "b"]))
    pq.write_table(pa.table({"y": names}), tmp_path / "y.parquet")
    data = (tmp_path / "y.parquet").read_bytes()
    for place in range(len(data)):  # of the packed indices, among others
        (tmp_path / "y.parquet").write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        with suppress(ValueError, TypeError):  # but no LookupError
            open_labels(str(tmp_path / "y.parquet"), 40)


def test_columns_of_parquet_are_named_and_broken_files_too(tmp_path: Path) -> None:
    source = save_parquet(tmp_path, INTEGERS)
    path = tmp_path / "y.parquet"
    with pytest.raises(ValueError, match=r"y.parquet has 2 columns. Name the one that holds the labels.*: id, y\."):
        open_labels(path, N)
    with pytest.raises(KeyError, match=r"y.parquet has no column 'z'. Name .*: id, y\."):
        open_labels(f"{path}::z", N)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptedChunkError, match=r"y.parquet is not a complete Parquet file .*Copy or write it again"):
        open_labels(source, N)
    pq.write_table(pa.table({"y": pd.to_datetime(["2020-01-01", "2021-01-01"])}), path)
    with pytest.raises(TypeError, match=r"labels hold (Timestamp|datetime)"):
        open_labels(path, 2)


def test_lost_chunks_of_labels_are_never_class_zero(tmp_path: Path) -> None:
    for name, y in (("i", np.abs(INTEGERS)), ("s", NAMES)):
        (tmp_path / name).mkdir()
        path = save_zarr(tmp_path / name, y)
        (path / "c" / "2").unlink()
        for source in (path, zarr.open_array(path), da.from_zarr(path), da.from_zarr(path)[::-1]):
            with pytest.raises(
                MissingChunksError, match=r"1 chunks of labels are not in the store: c/2\. They were lost"
            ):
                open_labels(source, N)


def test_members_of_zarr_groups_are_named(tmp_path: Path) -> None:
    source = save_zarr_group(tmp_path, INTEGERS)
    store = source.partition("::")[0]
    for wrong, error, match in [
        (store, ValueError, r"g.zarr has 2 arrays. Name the one that holds the labels.*features"),
        (zarr.open_group(store), ValueError, r"g.zarr has 2 arrays"),
        (f"{store}::y", KeyError, r"g.zarr has no array 'y'. .*here/y"),
        (f"{save_zarr(tmp_path, INTEGERS)}::y", KeyError, r"is one Zarr array, so it has no member 'y'"),
    ]:
        with pytest.raises(error, match=match):
            open_labels(wrong, N)


@pytest.mark.parametrize("y", [NAMES, INTEGERS], ids=["text", "numbers"])
@pytest.mark.parametrize(
    ("codec", "match"), [("base64", r"uses the codec .*'base64', which is not .*allowed"), ("pickle", "pickle")]
)
def test_codecs_that_could_run_code_are_rejected(y: np.ndarray, codec: str, match: str, tmp_path: Path) -> None:
    z = zarr.create_array(
        tmp_path / "y.zarr", shape=y.shape, dtype=y.dtype, chunks=(5,), fill_value=None, zarr_format=2
    )
    z[...] = y
    document = tmp_path / "y.zarr" / ".zarray"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"filters": [{"id": codec}]}))
    with pytest.raises(ValueError, match=match):
        open_labels(tmp_path / "y.zarr", N)


def test_labels_that_are_written_over_while_they_are_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = save_npy(tmp_path, INTEGERS), files.check_regular

    def write_over(*given: Any) -> Any:
        found = look(*given)
        path.write_bytes(path.read_bytes())
        return found

    monkeypatch.setattr(files, "check_regular", write_over)
    with pytest.raises(bp.errors.InputChangedError, match="the input changed while it was read"):
        open_labels(path, len(INTEGERS))
