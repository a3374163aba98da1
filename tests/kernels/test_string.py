"""Strings as codes, and their kernels against brute force, worked examples and their limits."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigpca.kernels.string import Spectrum, Subsequence, string_codes
from tests.kernels.cases_other import subsequences

WORDS = st.lists(st.text("ab\u00e9\U0001f600", max_size=7), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(1, 4))
def test_the_spectrum_counts_common_substrings(words, length):
    counts = [Counter(word[i : i + length] for i in range(len(word) - length + 1)) for word in words]
    expected = [[sum(n * y[u] for u, n in x.items()) for y in counts] for x in counts]
    np.testing.assert_array_equal(Spectrum(length)(string_codes(words)), expected)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(1, 4), st.sampled_from([0.25, 0.8, 1.0]))
def test_subsequences_are_those_found_by_trying_all_places(words, length, decay):
    found = [subsequences(word, length, decay) for word in words]
    expected = [[sum(w * y.get(u, 0) for u, w in x.items()) for y in found] for x in found]
    K = Subsequence(length, decay)(string_codes(words))
    np.testing.assert_allclose(K, expected, rtol=1e-13, atol=0)


def test_the_example_of_lodhi_is_reproduced():
    """Lodhi et al. 2002, sec. 3: K(car, cat) = decay^4 and K(car, car) = K(cat, cat) = 2 decay^4 + decay^6."""
    decay = 0.3
    K = Subsequence(2, decay)(string_codes(["car", "cat"]))
    own = 2 * decay**4 + decay**6
    np.testing.assert_allclose(K, [[own, decay**4], [decay**4, own]], rtol=1e-14)


@pytest.mark.parametrize("kernel", [Spectrum(3), Subsequence(3, 0.5)], ids=str)
def test_strings_that_are_empty_or_shorter_than_the_length_give_zero(kernel):
    codes = string_codes(["", "ab", "abab"])
    K = kernel(codes)
    assert (K[:2] == 0).all()
    assert (K[:, :2] == 0).all()
    assert K[2, 2] > 0
    np.testing.assert_array_equal(kernel(string_codes(["", ""])), np.zeros((2, 2)))


@pytest.mark.parametrize("kernel", [Spectrum(2), Subsequence(2, 0.5)], ids=str)
def test_the_width_of_the_rows_changes_nothing(kernel):
    words = ["banana", "bandana", "an"]
    narrow, padded = string_codes(words), np.pad(string_codes(words), ((0, 0), (0, 23))).astype(np.float32)
    np.testing.assert_array_equal(kernel(narrow), kernel(padded))
    np.testing.assert_array_equal(kernel(narrow, padded), kernel(narrow))


def test_codes_come_from_strings_bytes_and_objects_of_any_layout():
    expected = [[97, 98, 0], [0, 0, 0], [99, 97, 116]]
    words = ["ab", "", "cat"]
    for given_words in (
        words,
        np.array(words),
        np.array(words, dtype=">U9"),
        np.array(words)[:, None],
        np.array(words, dtype=object),
        np.array(words, dtype="S"),
        np.array([word.encode() for word in words], dtype=object),
        np.repeat(np.array(words), 2)[::2],
    ):
        codes = string_codes(given_words)
        assert codes.dtype.kind in "iu"
        np.testing.assert_array_equal(codes, expected)
    assert string_codes(["", ""]).shape == (2, 0)
    assert string_codes(["\U0010ffff"]).tolist() == [[0x10FFFF]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["ab", 3], r"value 1 is 3, an int, among str values"),
        (["ab", b"c"], r"value 1 is b'c', a bytes, among str values"),
        ([b"ab", "c"], r"value 1 is 'c', a str, among bytes values"),
        (["ab", None], r"value 1 is None, a NoneType"),
        (["ab", "c\0"], r"value 1 = 'c\\x00' ends in a zero character"),
        (["ab", "c\0d"], r"row 1, column 1 is 0, but a character follows"),
    ],
)
def test_values_that_are_no_strings_are_rejected_with_their_row(values, message):
    with pytest.raises(ValueError, match=message):
        string_codes(np.array(values, dtype=object))


def test_arrays_that_hold_no_strings_are_rejected():
    with pytest.raises(ValueError, match=r"X has dtype float64, but the kernel compares strings or bytes"):
        string_codes(np.ones(3))
    with pytest.raises(
        ValueError, match=r"strings have shape \(1, 2\). Give one string per row, in shape \(n,\) or \(n, 1\)"
    ):
        string_codes([["a", "b"]])


@pytest.mark.parametrize("kernel", [Spectrum(2), Subsequence(2)], ids=str)
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([97, 98.5], r"row 8, column 1 is 98\.5; the code of a character"),
        ([-1, 98], r"row 8, column 0 is -1\.0; the code"),
        ([97, 2e6], r"row 8, column 1 is 2000000\.0; the code"),
        ([0, 98], r"row 8, column 0 is 0, but a character follows"),
    ],
)
def test_rows_that_are_no_codes_are_rejected_with_their_place(kernel, row, message):
    with pytest.raises(ValueError, match=message):
        kernel.prepare(np.array([[97.0, 98.0], row]), None, 7)


@pytest.mark.parametrize("length", [0, 1.5, True, "2"])
def test_lengths_that_are_no_positive_integers_are_rejected(length):
    for kind in (Spectrum, Subsequence):
        with pytest.raises((TypeError, ValueError), match=r"length = .* an integer of at least 1 is required"):
            kind(length)


@pytest.mark.parametrize("decay", [0.0, 1.01, -0.5, np.nan, "0.5", True])
def test_decays_outside_their_range_are_rejected(decay):
    with pytest.raises((TypeError, ValueError), match=r"decay = .*\(0, 1\]"):
        Subsequence(2, decay)
