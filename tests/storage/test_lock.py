"""One run at a time; a dead run holds nothing."""

import json
import os
import subprocess
import sys
import threading

import pytest

from bigpca.errors import OutputLockedError
from bigpca.storage import RunLock, files, lock
from tests.interrupts import Interrupt, lines_of

HOLD = """
import sys
from bigpca.storage import RunLock
RunLock(sys.argv[1], "it").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scores.zarr.lock"


def alter(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_live_process_is_named_and_a_killed_one_is_taken_over(path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        record = json.loads(path.read_text())
        assert record["pid"] == child.pid
        with pytest.raises(OutputLockedError) as caught:
            RunLock(path, "the output scores.zarr").acquire()
        message = str(caught.value)
        assert message.startswith("the output scores.zarr is held by run ")
        for part in (f"pid {child.pid} on {record['host']}", record["since"], f"delete {path}", "Wait for that run"):
            assert part in message
        child.kill()
        child.wait(60)
    with RunLock(path, "it"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


def test_a_killed_child_that_nobody_waited_for_is_dead_too(path):
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie until wait()
    RunLock(path, "it").acquire()
    child.communicate(timeout=60)


def test_the_same_process_cannot_take_it_twice(path):
    first = RunLock(path, "it")
    first.acquire()
    first.acquire()  # holding it already is no conflict with oneself
    with pytest.raises(OutputLockedError, match=f"pid {os.getpid()}"):
        RunLock(path, "it").acquire()
    first.release()
    first.release()
    RunLock(path, "it").acquire()


def test_a_reused_pid_is_not_taken_for_the_holder(path):
    RunLock(path, "it").acquire()
    alter(path, started="another boot:123")
    RunLock(path, "it").acquire()


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}])
def test_a_holder_that_cannot_be_checked_counts_as_live(path, change):
    RunLock(path, "it").acquire()
    alter(path, pid=2**22 + 1, **change)
    with pytest.raises(OutputLockedError, match="which cannot be checked for another machine"):
        RunLock(path, "it").acquire()


def test_a_process_that_may_not_be_looked_at_counts_as_live(path, monkeypatch):
    RunLock(path, "it").acquire()
    holder = lock._parse(path.read_bytes())

    def hidden(pid):
        raise PermissionError(pid)

    monkeypatch.setattr(lock, "_start_mark", hidden)
    assert not lock._is_dead(holder)


@pytest.mark.parametrize("content", [b"", b"\0" * 99, b'{"run_id": "' + b"0a" * 16 + b'", "ho'])
def test_a_lock_without_a_whole_record_is_free_and_an_empty_one_stays(path, content):
    path.write_bytes(content)
    with RunLock(path, "it") as held:
        assert held.held
    assert path.exists() is not content.startswith(b"{")
    assert not path.exists() or path.read_bytes() == b""


@pytest.mark.parametrize(
    "content", [b"[]", b"{", b'{"host": "mine", "job": 7}', b'{"host": "a", "pid', b"\xff", b"of another program"]
)
def test_a_file_of_others_in_the_place_of_the_lock_is_left_alone(path, content):
    path.write_bytes(content)
    with pytest.raises(OutputLockedError, match=r"is a file that bigpca did not write\. Move"), RunLock(path, "it"):
        pass
    assert path.read_bytes() == content


def test_of_many_contenders_for_a_dead_lock_exactly_one_wins(path):
    RunLock(path, "it").acquire()
    for _ in range(10):
        alter(path, started="gone")
        barrier, won, lost = threading.Barrier(8, timeout=60), [], []

        def contend(barrier=barrier, won=won, lost=lost):
            contender = RunLock(path, "it")
            barrier.wait()
            try:
                contender.acquire()
            except OutputLockedError:
                lost.append(contender)
            else:
                won.append(contender)

        threads = [threading.Thread(target=contend, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (len(won), len(lost)) == (1, 7)


def test_a_lock_that_somebody_deleted_and_took_is_not_released(path):
    first, second = RunLock(path, "it"), RunLock(path, "it")
    first.acquire()
    path.unlink()
    second.acquire()
    first.release()
    assert path.exists()


def test_a_link_in_the_place_of_the_lock_is_not_followed(path, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        RunLock(path, "it").acquire()
    assert victim.read_text() == "precious"


def test_without_kernel_locks_only_the_creator_continues(path, monkeypatch):
    def unsupported(*args):
        raise OSError(95, "not supported")

    monkeypatch.setattr("bigpca.storage.files.fcntl.flock", unsupported)
    path.write_bytes(b"")
    with pytest.raises(OutputLockedError, match="a run that is just starting"):
        RunLock(path, "it").acquire()
    path.unlink()
    with RunLock(path, "it"):
        pass


def test_elsewhere_than_linux_the_start_second_marks_a_process(monkeypatch):
    def absent(self, *args, **kwargs):
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(lock.Path, "read_text", absent)
    assert int(lock._start_mark(os.getpid())) > 1e9


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # an interrupt of its close leaves it to Python
def test_an_interrupt_at_any_line_leaves_it_free_for_the_same_process(path, monkeypatch):
    monkeypatch.setattr(lock, "MUTEX_SECONDS", 0.1)  # of a descriptor that an interrupt of its close leaves open

    def use():
        one = RunLock(path, "it")
        try:
            one.acquire()
        finally:
            one.release()

    def within(frame):
        return frame.f_code.co_filename in (lock.__file__, files.__file__) and frame.f_code.co_name != "release"

    lines = lines_of(use, within)
    assert len(lines) > 40
    for line in lines:
        assert Interrupt(within, line).during(use) is not None
        with RunLock(path, "it"):
            pass
