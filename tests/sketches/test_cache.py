"""The cache of the sketches: bounded, the last used stay, and each value is built once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bigpca.sketches.base import Cache


def test_the_values_used_last_stay():
    cache, built = Cache(100), []

    def use(key):
        return cache.get(key, 40, lambda: built.append(key) or key)

    assert [use(key) for key in "ababcab"] == list("ababcab")
    assert built == ["a", "b", "c", "a", "b"]  # c takes a's place, a takes b's, b takes c's


def test_the_sizes_of_what_is_kept_never_exceed_the_limit():
    cache = Cache(100)
    for key, nbytes in enumerate([60, 40, 1, 100, 30, 30, 30, 30]):
        cache.get(key, nbytes, object)
        assert cache.nbytes <= 100
    assert cache.nbytes == 90


def test_what_is_over_the_limit_is_made_at_every_call_and_drops_nothing():
    cache = Cache(100)
    cache.get("small", 100, object)
    first = cache.get("large", 101, object)
    assert cache.get("large", 101, object) is not first
    assert cache.nbytes == 100
    assert cache.fits(100)
    assert not cache.fits(101)


def test_threads_that_ask_at_once_get_the_one_value():
    cache, built, together = Cache(100), [], threading.Barrier(8)

    def build():
        built.append(threading.get_ident())
        return object()

    def ask(_):
        together.wait(timeout=600)
        return cache.get("key", 1, build)

    with ThreadPoolExecutor(8) as pool:
        assert len({id(value) for value in pool.map(ask, range(8))}) == 1
    assert len(built) == 1


def test_a_failed_build_is_tried_again():
    cache = Cache(100)
    with pytest.raises(MemoryError):
        cache.get("key", 1, lambda: (_ for _ in ()).throw(MemoryError))
    assert cache.get("key", 1, lambda: 5) == 5
