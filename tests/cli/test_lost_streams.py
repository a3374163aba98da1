"""A command whose words cannot be written does its work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bigpca as bp
from tests.cli.running import forked

WORDS = """
import os, sys
from bigpca.cli.process import keep_streams_open, lost_output
keep_streams_open()
for stream in (sys.stdout, sys.stderr):
    print("words" * 100_000, file=stream)
print("\\udcff", file=sys.stderr)
with open("own", "w") as file:
    assert file.fileno() > 2, "a file of its own got the number of a closed stream"
os.write(3, str(getattr(lost_output(), "errno", 0)).encode())
"""


@pytest.mark.parametrize(
    ("streams", "error"),
    [("", 0), (">/dev/full", 28), ("2>/dev/full", 0), (">&-", 9), ("2>&-", 0), ("<&- >&- 2>&-", 9), ("| true", 32)],
)
def test_words_that_cannot_be_written_are_dropped(streams: str, error: int, tmp_path: Path) -> None:
    command = f'{{ "$0" -c "$1" 3>lost; }} {streams}; test ${{PIPESTATUS[0]}} = 0'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, WORDS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "lost").read_text() == str(error)


def test_a_fit_whose_words_are_lost_saves_its_model(store: Path) -> None:
    command = '"$0" -m bigpca fit rows.zarr -k 2 >&- 2>&-'
    assert subprocess.run(["bash", "-c", command, sys.executable], check=False).returncode == 0
    full = os.open("/dev/full", os.O_RDWR)
    child = forked("fit", store, "-k", 2, "--json", "--model", "full.zarr", streams=(full,) * 3)
    child.join(300)
    assert child.exitcode == 4
    assert [bp.load(name).n_components_ for name in ("model.zarr", "full.zarr")] == [2, 2]
