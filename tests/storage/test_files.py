"""Whole or absent: the primitives."""

import os
import time

import pytest

from bigpca.errors import OutputExistsError
from bigpca.storage import atomic_write_bytes, carriers, files, free_bytes
from tests.storage.writing import dead


def test_a_file_is_replaced_whole(tmp_path):
    atomic_write_bytes(tmp_path / "a", b"one")
    atomic_write_bytes(str(tmp_path / "a"), memoryview(b"two"))
    assert (tmp_path / "a").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_litter(tmp_path, monkeypatch, step):
    atomic_write_bytes(tmp_path / "a", b"one")

    def fails(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, step, fails)
    with pytest.raises(OSError, match="No space left"):
        atomic_write_bytes(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a"]


def test_free_bytes_of_a_path_that_is_not_there_yet_are_its_parents(tmp_path):
    assert abs(free_bytes(tmp_path / "a" / "b") - free_bytes(tmp_path)) < 2**30
    assert free_bytes(tmp_path) > 0


def test_a_failed_second_rename_puts_the_old_one_back(tmp_path):
    (tmp_path / "x").write_text("old")
    with files.temporary_sibling(tmp_path / "x") as sibling, pytest.raises(FileNotFoundError):
        files.publish(tmp_path / "absent", tmp_path / "x", replace=True, sibling=sibling)
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_publishing_over_something_needs_replace(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "new").mkdir()
    with pytest.raises(FileExistsError):
        files.publish(tmp_path / "new", tmp_path / "x", replace=False, sibling=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["new", "x"]


def test_repair_restores_the_youngest_old_one_and_removes_the_others(tmp_path):
    for name in ("1", "2"):
        dead(tmp_path / "x", name)
        time.sleep(0.02)  # beyond the clock's tick
    assert files.standing(tmp_path / "x").read_text() == "2"
    assert len(os.listdir(tmp_path)) == 2, "a reader renames nothing"
    files.repair(tmp_path / "x")
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "2"


def test_a_sibling_of_a_live_writer_is_left_alone_and_a_dead_ones_is_removed(tmp_path):
    dead(tmp_path / "x")
    with files.temporary_sibling(tmp_path / "x") as first, files.temporary_sibling(tmp_path / "x") as second:
        assert first.is_dir()
        assert second.is_dir()
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == []


def test_many_files_are_forced_to_the_disk_at_once(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("c")
    forced = []
    monkeypatch.setattr(files, "fsync_path", forced.append)
    monkeypatch.setattr(files.os, "sync", lambda: forced.append("all"))
    files.fsync_tree(tmp_path)
    assert forced == [tmp_path / "a/b/c", tmp_path / "a/b", tmp_path / "a", tmp_path]
    monkeypatch.setattr(files, "MANY_FILES", 2)
    files.fsync_tree(tmp_path)
    assert forced[4:] == ["all"]


def test_of_two_files_for_one_new_path_one_is_written_and_what_a_kill_left_is_removed(tmp_path):
    killed = dead(tmp_path / "a")
    assert list(tmp_path.iterdir()) == [killed]
    carriers.reject_file(tmp_path / "a", overwrite=False)  # as both runs find before their work
    one, two = b"<!doctype html>1", b"<!doctype html>2"
    carriers.write_file(tmp_path / "a", one, overwrite=False)
    with pytest.raises(OutputExistsError, match=r"a exists already \(a file\)"):
        carriers.write_file(tmp_path / "a", two, overwrite=False)
    assert (tmp_path / "a").read_bytes() == one
    carriers.write_file(tmp_path / "a", two, overwrite=True)
    assert (tmp_path / "a").read_bytes() == two
    assert os.listdir(tmp_path) == ["a"]
