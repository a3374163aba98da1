"""A command whose words cannot be written does its work; one that is interrupted early has its word all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bigpca as bp
from bigpca.errors import MAX_MESSAGE
from tests.cli.running import forked, run, run_json

WORDS = """
import os, sys
from bigpca.cli.process import keep_streams_open, lost_output
keep_streams_open()
for stream in (sys.stdout, sys.stderr):
    print("words" * 10_000, file=stream)
print("\\udcff", file=sys.stderr)
with open("own", "w") as file:
    assert file.fileno() > 2, "a file of its own got the number of a closed stream"
os.write(3, str(getattr(lost_output(), "errno", 0)).encode())
"""
# The first import of a module sends the signal, as a Ctrl-C in the first second would.
EARLY = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{number})
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["bigpca", "plan", "rows.zarr", "--json"]
from bigpca.cli import main
main()
"""


@pytest.mark.parametrize(
    ("streams", "error"),
    [("", 0), (">/dev/full", 28), ("2>/dev/full", 0), (">&-", 9), ("2>&-", 0), ("<&- >&- 2>&-", 9), ("| true", 32)],
)
def test_words_that_cannot_be_written_are_dropped(streams: str, error: int, tmp_path: Path) -> None:
    command = f'{{ sleep 0.1; "$0" -c "$1" 3>lost; }} {streams}; test ${{PIPESTATUS[0]}} = 0'
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


@pytest.mark.parametrize(("module", "number"), [("typer", "SIGINT"), ("numpy", "SIGINT"), ("dask", "SIGTERM")])
def test_an_interrupt_during_the_imports_has_its_word_and_its_json_object(module: str, number: str) -> None:
    script = EARLY.format(module=module, number=number)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "bigpca: interrupted.\n")
    assert json.loads(done.stdout)["error"] == {
        "type": "KeyboardInterrupt", "message": "interrupted.", "exit_code": 130
    }  # fmt: skip


def test_no_escape_sequence_of_a_path_reaches_a_terminal_and_no_message_is_long(store: Path) -> None:
    name = "\x1b[31mred\x07\u202egpj\n" + "x" * 5000
    for arguments in (
        ("fit", name),
        ("info", name),
        ("transform", store, "--model", name),
        ("fit", store, "--member", name),
    ):
        result = run(*arguments)
        assert result.exit_code in (3, 6)
        assert r"\x1b[31mred\x07\u202egpj" in result.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(result.stderr)
        assert max(map(len, result.stderr.splitlines())) <= len("bigpca: ") + MAX_MESSAGE
        assert len(run_json(*arguments)["error"]["message"]) <= MAX_MESSAGE
