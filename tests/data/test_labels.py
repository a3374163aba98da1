"""Labels from anywhere become the classes or targets that NumPy would find, or an error that says what is wrong."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bigpca.data.label_files import parse_column
from bigpca.data.labels import ClassLabels, TargetLabels, merge_classes, open_labels
from tests.data.label_savers import (
    BOOLEANS,
    HOLDERS,
    INTEGERS,
    NAMES,
    REALS,
    VECTORS,
    WORDS,
    N,
    hold,
    save_csv_alone,
    save_npy,
    save_parquet,
    save_zarr,
)


def classes_of(y: Any) -> ClassLabels:
    labels = open_labels(y, len(INTEGERS), min_classes=1)
    assert isinstance(labels, ClassLabels)
    return labels


def targets_of(y: Any) -> TargetLabels:
    labels = open_labels(y, N)
    assert isinstance(labels, TargetLabels)
    return labels


EXACT = {"integers": INTEGERS, "booleans": BOOLEANS, "names": NAMES}


@pytest.mark.parametrize("what", EXACT)
@pytest.mark.parametrize("holder", HOLDERS)
def test_classes_are_the_distinct_labels_from_every_source(holder: str, what: str, tmp_path: Path) -> None:
    y = EXACT[what]
    labels = classes_of(HOLDERS[holder](tmp_path, y))
    if what == "booleans" and holder.startswith("csv"):
        y = y.astype(str)  # text has no booleans
    classes, codes = np.unique(y, return_inverse=True)
    assert labels.classes.dtype.kind == y.dtype.kind
    assert np.array_equal(labels.classes, classes)
    assert np.array_equal(labels.codes, codes)
    assert labels.codes.dtype == np.int32
    assert np.array_equal(labels.counts, np.bincount(codes))
    assert (len(labels.codes), labels.n_classes, labels.missing, labels.used.all()) == (N, len(classes), 0, True)


@pytest.mark.parametrize("holder", [name for name in HOLDERS if name != "series of nullable values"])
def test_real_numbers_are_targets_from_every_source_to_the_last_bit(holder: str, tmp_path: Path) -> None:
    labels = targets_of(HOLDERS[holder](tmp_path, REALS))
    assert np.array_equal(labels.values, REALS[:, None])
    assert labels.values.dtype == np.float64
    assert (len(labels.values), labels.missing, labels.used.all()) == (N, 0, True)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "<i2", ">i4", "u8", "U9", "S9", "O"])
def test_every_exact_dtype_gives_the_same_codes(dtype: str, tmp_path: Path) -> None:
    y = (np.arange(N) % 2).astype(dtype)
    assert np.array_equal(classes_of(y).codes, np.arange(N) % 2)
    if dtype != "O":
        assert np.array_equal(classes_of(save_npy(tmp_path, y)).codes, np.arange(N) % 2)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "g"])
def test_real_dtypes_are_widened_exactly(dtype: str) -> None:
    y = REALS.astype("f2").astype(dtype)
    assert np.array_equal(targets_of(y).values[:, 0], y.astype(np.float64))


def test_h5py_datasets_and_string_dtypes_of_numpy_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["y"] = INTEGERS
        assert np.array_equal(classes_of(file["y"]).codes, classes_of(INTEGERS).codes)
    assert np.array_equal(classes_of(WORDS.astype(np.dtypes.StringDType())).classes, np.unique(WORDS))


def save_parquet_lists(folder: Path, y: np.ndarray) -> Any:
    pq.write_table(pa.table({"y": list(y)}), folder / "y.parquet")
    return folder / "y.parquet"


@pytest.mark.parametrize(
    "hold",
    [
        hold(lambda y: y),
        hold(lambda y: y.tolist()),
        hold(list),
        hold(np.asfortranarray),
        hold(pd.DataFrame),
        hold(lambda y: da.from_array(y, chunks=(4, 2))),
        save_npy,
        save_zarr,
        save_parquet_lists,
    ],
)
def test_vectors_of_real_numbers_stay_in_their_columns(hold: Any, tmp_path: Path) -> None:
    assert np.array_equal(targets_of(hold(tmp_path, VECTORS)).values, VECTORS)


def test_integers_are_targets_where_that_is_asked_for() -> None:
    for y in (INTEGERS, np.stack([INTEGERS, INTEGERS], 1), BOOLEANS, INTEGERS.tolist()):
        labels = open_labels(y, N, kind="targets")
        assert isinstance(labels, TargetLabels)
        assert np.array_equal(labels.values, np.asarray(y, float).reshape(N, -1))


def test_whole_real_numbers_are_classes_only_where_that_is_asked_for() -> None:
    y = INTEGERS.astype(float)
    assert isinstance(open_labels(y, N), TargetLabels)
    labels = open_labels(y, N, kind="classes")
    assert isinstance(labels, ClassLabels)
    assert labels.classes.dtype == np.int64
    assert np.array_equal(labels.classes[labels.codes], INTEGERS)


def test_integers_of_64_bits_are_never_rounded() -> None:
    y = [2**53, 2**53 + 1, -(2**63), 2**63 - 1]
    for given_y in (y, np.array(y), [*y[:3], np.int64(y[3])]):
        labels = open_labels(given_y, 4)
        assert isinstance(labels, ClassLabels)
        assert labels.classes.tolist() == sorted(y)
    unsigned = open_labels([2**64 - 1, 2**64 - 2, 0], 3)
    assert isinstance(unsigned, ClassLabels)
    assert unsigned.classes.tolist() == [0, 2**64 - 2, 2**64 - 1]
    gap = open_labels([2**53 + 1, None, 2**53], 3, missing="drop")
    assert isinstance(gap, ClassLabels)
    assert gap.classes.tolist() == [2**53, 2**53 + 1]


def test_unsigned_integers_that_fit_are_signed_ones() -> None:
    for largest, dtype in ((2**63 - 1, np.int64), (2**63, np.uint64)):
        assert open_labels(np.array([largest, 0], np.uint64), 2).classes.dtype == dtype


def test_the_callers_objects_are_left_alone() -> None:
    series = pd.Series(["a", None, "b"], dtype=object)
    array = np.array(["a", np.nan, "b"], dtype=object)
    masked = np.ma.MaskedArray([1, 2, 3], [False, True, False])
    before = series.copy()
    for y in (series, array, masked):
        open_labels(y, 3, missing="drop")
    assert series.equals(before)
    assert array[1] is np.nan
    assert np.ma.getmaskarray(masked).tolist() == [False, True, False]
    assert masked.data.tolist() == [1, 2, 3]


def test_a_folder_above_the_files_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "y=3").mkdir()
    labels = classes_of(save_parquet(tmp_path / "y=3", INTEGERS))
    assert np.array_equal(labels.classes[labels.codes], INTEGERS)


def test_files_that_disagree_in_integer_type_keep_every_bit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": pa.array([2**53 + 1, 2**53], pa.int64())}), tmp_path / "a_1.parquet")
    pq.write_table(pa.table({"y": pa.array([3], pa.uint64())}), tmp_path / "a_2.parquet")
    labels = open_labels(tmp_path / "a_*.parquet", 3)
    assert isinstance(labels, ClassLabels)
    assert labels.classes.tolist() == [3, 2**53, 2**53 + 1]


def test_the_only_array_of_a_group_needs_no_name(tmp_path: Path) -> None:
    only = zarr.create_group(tmp_path / "only.zarr")
    only.create_array("y", data=np.arange(N) + 1)
    for source in (only, tmp_path / "only.zarr", f"{tmp_path}/only.zarr::y"):
        assert classes_of(source).n_classes == N


def test_real_numbers_are_classes_as_long_as_none_can_be_another_integer_rounded() -> None:
    labels = open_labels([2.0**53 - 1, 1 - 2.0**53], 2, kind="classes")
    assert isinstance(labels, ClassLabels)
    assert labels.classes.tolist() == [1 - 2**53, 2**53 - 1]
    with pytest.raises(ValueError, match=r"1 of 2 labels are not integers below 2\^53, such as 9.0072e\+15"):
        open_labels([2**53 + 1, 1.0], 2, kind="classes")


@pytest.mark.parametrize(
    ("first", "second", "declared", "known"),
    [
        (np.array([2**60 + 1, 5]), np.array([2**60, 2**63], np.uint64), "i8", None),
        (np.array([2**60 + 1, 5]), np.array([2**60, 2**63 - 1], np.uint64), "O", [5, 2**60, 2**60 + 1, 2**63 - 1]),
        (np.array([1, 5], "i1"), np.array([2**60, 2**60 + 1]), "i8", [1, 5, 2**60, 2**60 + 1]),
        (np.array([1, 5]), np.array([0.5, 2]), "i8", None),
    ],
)
def test_chunks_of_other_integer_types_than_declared_are_rejected_where_they_would_be_rounded(
    first: Any, second: Any, declared: str, known: list[int] | None
) -> None:
    def block(block_info: Any = None) -> Any:
        return (first, second)[block_info[None]["chunk-location"][0]]

    y = da.map_blocks(block, chunks=((2, 2),), dtype=declared, meta=np.empty(0, declared))
    if known is None:
        with pytest.raises(
            TypeError, match=r"a chunk of the labels has dtype .*declares int64.*Convert the chunks first"
        ):
            open_labels(y, 4)
    else:
        found = open_labels(y, 4)
        assert isinstance(found, ClassLabels)
        assert found.classes[found.codes].tolist() == [*first.tolist(), *second.tolist()]
        assert found.classes.tolist() == known


# Missing labels.


def csv_with_gaps(folder: Path, y: str) -> Any:
    (folder / "y.csv").write_text(y)
    return folder / "y.csv"


def parquet_with_gaps(folder: Path, y: list[Any]) -> Any:
    pq.write_table(pa.table({"y": y}), folder / "y.parquet", row_group_size=2)
    return folder / "y.parquet"


IN_GAPS = [  # rows 1 and 3 of 5 have none; the others are the first, second and first class
    ("None among strings", hold(list), ["a", None, "b", None, "a"], ["a", "b"]),
    ("None among integers", hold(list), [1, None, 2, None, 1], [1, 2]),
    ("NaN among integers", hold(list), [1, np.nan, 2, None, 1], [1, 2]),
    ("NaN among strings", hold(lambda y: np.array(y, object)), ["a", np.nan, "b", np.float32("nan"), "a"], ["a", "b"]),
    ("NA and NaT", hold(list), [False, pd.NA, True, pd.NaT, False], [False, True]),
    (
        "data frame of a category",
        hold(lambda y: pd.DataFrame({"cat": y}, dtype="category")),
        [1, None, 2, None, 1],
        [1, 2],
    ),
    ("Decimal", hold(list), [b"a", Decimal("nan"), b"b", Decimal("sNaN"), b"a"], [b"a", b"b"]),
    ("nullable integers", hold(lambda y: pd.Series(y, dtype="Int64")), [1, None, 2, None, 1], [1, 2]),
    (
        "nullable booleans",
        hold(lambda y: pd.Series(y, dtype="boolean")),
        [False, None, True, None, False],
        [False, True],
    ),
    ("series of strings", hold(pd.Series), ["a", None, "b", None, "a"], ["a", "b"]),
    ("categories", hold(lambda y: pd.Series(y, dtype="category")), ["a", None, "b", None, "a"], ["a", "b"]),
    ("category of integers", hold(lambda y: pd.Series(y, dtype="category")), [1, None, 2, None, 1], [1, 2]),
    ("mask", hold(lambda y: np.ma.MaskedArray(y, [0, 1, 0, 1, 0])), [1, 7, 2, 8, 1], [1, 2]),
    ("dask", hold(lambda y: da.from_array(np.array(y, object), chunks=2)), ["a", None, "b", None, "a"], ["a", "b"]),
    ("csv of integers", csv_with_gaps, "y,z\n1,0\n,0\n2,0\n,0\n1,0\n\n", [1, 2]),
    ("csv with nan", csv_with_gaps, "y,\n1,\nnan,\n2,\nNaN,\n1,\n", [1, 2]),
    ("csv of strings", csv_with_gaps, 'y\na\n""\nb\n\n"a"', ["a", "b"]),
    ("parquet of integers", parquet_with_gaps, [1, None, 2, None, 1], [1, 2]),
    ("parquet of strings", parquet_with_gaps, ["a", None, "", None, "a"], ["", "a"]),
    ("empty strings in a list", hold(list), ["a", None, "", None, "a"], ["", "a"]),
]


def name_column(y: Any, name: str) -> Any:
    return f"{y}::y" if name in ("csv of integers", "csv with nan") else y


@pytest.mark.parametrize(("name", "save", "y", "classes"), IN_GAPS, ids=[row[0] for row in IN_GAPS])
def test_missing_labels_are_counted_and_coded_or_rejected(
    name: str, save: Any, y: Any, classes: list[Any], tmp_path: Path
) -> None:
    source = name_column(save(tmp_path, y), name)
    labels = open_labels(source, 5, missing="drop")
    assert isinstance(labels, ClassLabels)
    a, b = (1, 0) if classes[0] == "" else (0, 1)
    assert labels.codes.tolist() == [a, -1, b, -1, a]
    assert labels.classes.tolist() == classes
    assert labels.missing == 2
    assert labels.used.tolist() == [True, False, True, False, True]
    assert labels.counts[[a, b]].tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"2 of 5 labels are missing \(rows 1, 3\); one for each row was exp.*drop"):
        open_labels(source, 5)


@pytest.mark.parametrize(
    "y",
    [
        np.array([0.5, np.nan, 2.5]),
        [0.5, None, 2.5],
        [Decimal("0.5"), None, Decimal("2.5")],
        pd.Series([0.5, None, 2.5]),
        pd.Series([0.5, None, 2.5], dtype="Float32"),
        np.ma.MaskedArray([0.5, 9.0, 2.5], [0, 1, 0]),
    ],
)
def test_missing_targets_are_nan_and_counted(y: Any, tmp_path: Path) -> None:
    labels = open_labels(y, 3, missing="drop")
    assert isinstance(labels, TargetLabels)
    assert np.array_equal(labels.values, [[0.5], [np.nan], [2.5]], equal_nan=True)
    assert (labels.missing, labels.used.tolist()) == (1, [True, False, True])
    with pytest.raises(ValueError, match=r"1 of 3 labels are missing \(row 1\)"):
        open_labels(y, 3)


def test_a_row_that_lacks_one_of_its_targets_is_missing() -> None:
    y = VECTORS.copy()
    y[4, 1] = y[6] = np.nan
    labels = open_labels(y, N, missing="drop")
    assert isinstance(labels, TargetLabels)
    assert (labels.missing, np.flatnonzero(~labels.used).tolist()) == (2, [4, 6])
    assert np.array_equal(labels.values, y, equal_nan=True)


# Tables of text.


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["1", "-2", "+3", "0"], [1, -2, 3, 0]),
        (["1", "2.", ".5", "-1e3"], [1.0, 2.0, 0.5, -1000.0]),
        (["007", "7"], ["007", "7"]),
        (["1_000", "1"], ["1_000", "1"]),
        (["١", "1"], ["١", "1"]),
        ([" 1", "1"], [" 1", "1"]),
        (["nan", "a"], ["nan", "a"]),
        (["nan", ""], ["nan", None]),
        (["nan", "1"], [None, 1]),
        (["inf", "1"], [np.inf, 1.0]),
        (["9007199254740993", ""], [9007199254740993, None]),
        (["True", "False"], ["True", "False"]),
        ([], []),
    ],
)
def test_text_is_a_number_only_where_nothing_is_lost(texts: list[str], found: list[Any]) -> None:
    values = parse_column(texts).tolist()
    assert values == found
    assert [type(value) for value in values] == [type(value) for value in found]


def test_a_single_column_needs_no_name_and_may_have_double_colons(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("a::b,c\n1,x\n2,y\n")
    labels = open_labels(f"{tmp_path}/y.csv::a::b", 2)
    assert isinstance(labels, ClassLabels)
    assert labels.classes.tolist() == [1, 2]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert len(classes_of(f"{save_csv_alone(tmp_path, INTEGERS)}::y").codes) == N


# Classes of later batches.


def test_later_labels_are_coded_in_the_same_classes() -> None:
    labels = classes_of(NAMES)
    assert np.array_equal(labels.encode(NAMES[::-1]), labels.codes[::-1])
    assert labels.encode(["bee", None, "bee"], missing="drop").tolist() == [1, -1, 1]
    numbers = classes_of(INTEGERS)
    assert np.array_equal(numbers.encode(INTEGERS.astype(float)), numbers.codes)
    with pytest.raises(ValueError, match=r"1 of 2 labels are missing \(row 1\)"):
        labels.encode(["bee", None])
    with pytest.raises(ValueError, match=r"2 classes are new: eel, fox. The 4 known classes are .*ape, bee, cat"):
        classes_of(["ape", "bee", "cat", "dog"] + ["ape"] * (N - 4)).encode(["fox", "bee", "eel"])


def test_rows_keep_their_labels_among_more_classes() -> None:
    labels = open_labels(["b", None, "d"], 3, missing="drop")
    assert isinstance(labels, ClassLabels)
    more = labels.with_classes(["a", "b", "c", "d", "e"])
    assert more.codes.tolist() == [1, -1, 3]
    assert more.counts.tolist() == [0, 1, 0, 1, 0]
    assert more.missing == 1
    with pytest.raises(ValueError, match=r"1 classes are new: d. The 2 known classes are a, b"):
        labels.with_classes(["a", "b"])


texts = st.lists(st.text(st.characters(exclude_characters="\0"), max_size=3), min_size=1, max_size=8, unique=True)
signed = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True)
unsigned = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8, unique=True)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.tuples(texts, texts), st.tuples(signed, signed), st.tuples(unsigned, unsigned)))
@example(([2**58 + 3], [2**58 + 2, 2**63]))  # int64 and uint64
def test_merged_classes_are_the_sorted_union_and_positions_lead_back(both: tuple[list[Any], list[Any]]) -> None:
    old, new = both
    union, old_positions, new_positions = merge_classes(old, new)
    assert union.tolist() == sorted({*old, *new})
    assert union[old_positions].tolist() == old
    assert union[new_positions].tolist() == new


def test_booleans_and_integers_are_numbers_of_one_kind() -> None:
    union, old, new = merge_classes([False, True], [1, 5])
    assert (union.tolist(), old.tolist(), new.tolist()) == ([0, 1, 5], [0, 1], [1, 2])


def test_classes_of_different_types_do_not_merge() -> None:
    for old, new, match in [
        ([1, 2], ["1"], r"the classes so far are numbers \(1, 2\), but the new ones are strings \(1\). Convert"),
        (["a"], [b"a"], r"so far are strings \(a\), but the new ones are bytes \(b'a'\)"),
    ]:
        with pytest.raises(TypeError, match=match):
            merge_classes(old, new)
    with pytest.raises(ValueError, match=r"classes from -1 to 18446744073709551615 do not fit one 64-bit integer type"):
        merge_classes([-1, 2], [2**64 - 1, 0])
    assert merge_classes([1, 2], [2**64 - 1, 0])[0].tolist() == [0, 1, 2, 2**64 - 1]
