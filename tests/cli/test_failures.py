"""What goes wrong has one clear paragraph and its documented exit code."""

import errno
import shutil
import socket
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

import bigpca as bp
from bigpca.cli.options import parse_size
from bigpca.cli.output import ExitCode, describe, exit_code_for
from bigpca.errors import MAX_MESSAGE
from bigpca.parameters import PARAMETERS
from tests.cli.running import run, run_json


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 3),
        (TypeError("x"), 3),
        (FileNotFoundError(errno.ENOENT, "none", "x"), 3),
        (PermissionError(errno.EACCES, "denied", "x"), 3),
        (ImportError("needs h5py"), 3),
        (bp.errors.NonFiniteError("x"), 3),
        (bp.errors.MissingChunksError("x"), 3),
        (bp.errors.CorruptedChunkError("x"), 3),
        (bp.errors.MemoryBudgetError("x"), 4),
        (MemoryError(), 4),
        (OSError(errno.ENOSPC, "full"), 4),
        (bp.errors.OutputExistsError("x"), 5),
        (bp.errors.OutputLockedError("x"), 5),
        (bp.errors.OutputWriteError(errno.EACCES, "denied"), 5),
        (bp.errors.OutputWriteError(errno.ENOSPC, "full"), 4),
        (bp.errors.CheckpointError("x"), 6),
        (bp.errors.ModelFormatError("x"), 6),
        (TimeoutError("no workers"), 7),
        (ConnectionError("scheduler lost"), 7),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("bug"), 1),
        (RuntimeError("bug"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_for(error) == code


OF_MODELS = {
    "info": "info {}", "transform": "transform rows.zarr --model {} --scores s.zarr", "report": "report {}",
    "export": "export {} --out a.npz",
    "fit --update": "fit rows.zarr --update {}",
}  # fmt: skip
OF_ROWS = {
    "info": "info {}", "plan": "plan {} -k 2", "fit": "fit {} -k 2", "ingest": "ingest {} --out copy.zarr",
    "transform": "transform {} --model m.zarr --scores s.zarr", "verify": "verify {}",
    "report --rows": "report m.zarr --rows {}", "report --scores": "report m.zarr --scores {}",
    "--labels": "fit rows.zarr --method fisher --labels {}", "--weights": "fit rows.zarr --weights {}",
    "--groups": "fit rows.zarr --groups {}", "--targets": "fit rows.zarr --method cca --targets {}",
    "--update": "fit {} --update m.zarr",
}  # fmt: skip


@pytest.mark.parametrize("line", [*OF_MODELS.values(), *OF_ROWS.values()], ids=[*OF_MODELS, *OF_ROWS])
def test_a_code_means_the_same_in_every_command(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(60, 6))
    bp.ingest(X, "rows.zarr")
    bp.PCA(2).fit(X).save("m.zarr")
    for name in ("damaged model.zarr", "damaged rows.zarr"):
        shutil.copytree("m.zarr" if "model" in name else "rows.zarr", name)
        next(one for one in Path(name).rglob("c/**/*") if one.is_file()).write_bytes(b"x")
    forged = {"forged.zarr": "{", "nested.zarr": "[" * 200_000, "null.zarr": "null"}
    for name, text in forged.items():
        Path(name).mkdir()
        Path(name, "zarr.json").write_text(text)
    expected = {"none.zarr": 3} | dict.fromkeys(forged, 6 if line in OF_MODELS.values() and line != "info {}" else 3)
    if line in OF_MODELS.values():
        expected |= {"damaged model.zarr": 6} | ({} if line == "info {}" else {"rows.zarr": 6})
    elif line not in ("info {}", "verify {}", "plan {} -k 2"):  # which take a model, or read no chunk
        expected |= {"m.zarr": 3, "damaged rows.zarr": 3}
    codes = {name: run(*(name if one == "{}" else one for one in line.split())).exit_code for name in expected}
    assert codes == expected


def test_errors_of_distributed_and_their_rewording_are_cluster_errors() -> None:
    from distributed import KilledWorker

    reworded = RuntimeError("workers died")
    reworded.__cause__ = KilledWorker("task", None, 3)
    assert exit_code_for(reworded) == exit_code_for(reworded.__cause__) == ExitCode.CLUSTER


def test_errors_are_described_without_errno_noise_and_bugs_with_their_type() -> None:
    assert describe(OSError(errno.ENOSPC, "writing s.zarr needs 5 MiB")) == "writing s.zarr needs 5 MiB"
    assert describe(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"
    assert describe(MemoryError()) == "MemoryError"


def test_an_error_is_one_paragraph_on_stderr_and_a_traceback_only_with_debug(store: Path) -> None:
    result = run("fit", "absent.zarr")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("bigpca: ")
    assert "absent.zarr" in result.stderr
    assert "Traceback" not in result.stderr
    assert isinstance(run("fit", "absent.zarr", "--debug").exception, FileNotFoundError)
    record = run_json("fit", "absent.zarr")
    assert (record["error"]["type"], record["error"]["exit_code"]) == ("FileNotFoundError", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "x", "--method", "fishr"], "'fishr' is not one of"),
        (["fit", "x", "--n-components", "abc"], "'abc' is not valid: it is not a number. How many: an integer"),
        (["fit", "x", "--memory-limit", "xyz"], "'xyz' is not a size"),
        (["fit", "x", "--solver", "magic"], "'magic'"),
        (["fit", "x", "--nope"], "No such option"),
        (["plan"], "SOURCE"),
        (["bogus"], "No such command 'bogus'"),
    ],
)
def test_wrong_usage_is_a_json_object_too(arguments: list[str], message: str) -> None:
    record = run_json(*arguments)
    assert (record["exit_code"], record["error"]["exit_code"]) == (2, 2)
    assert message in record["error"]["message"]
    shown = run(*arguments)
    assert shown.stdout == ""
    usage, *lines = shown.stderr.splitlines()
    assert usage.startswith("Usage: bigpca")
    assert lines[0].startswith("bigpca: ")  # as all other errors begin
    assert max(map(len, lines)) <= 80


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


@pytest.mark.parametrize("command", ["plan", "fit", "info", "ingest"])
@pytest.mark.parametrize("source", ["x.npy", "x.h5", "x.zarr"])
def test_a_member_that_is_not_there_exits_3_and_says_what_is(command: str, source: str, store: Path) -> None:
    rows = np.ones((30, 4))
    path = str(store) if source == "x.zarr" else str(store.parent / source)
    if source == "x.npy":
        np.save(path, rows)
    elif source == "x.h5":
        with h5py.File(path, "w") as file:
            file["a"], file["b"] = rows, rows[:5]
    result = run(command, path, *(["out.zarr"] if command == "ingest" else []), "--member", "nope")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"bigpca: {path} ")
    assert ("it holds a (30, 4), b (5, 4)" if source == "x.h5" else "Leave member out") in result.stderr


def test_existing_outputs_are_rejected_before_any_read(store: Path) -> None:
    assert run("fit", store, "-k", 2, "--model", "m.zarr", "--scores", "s.zarr").exit_code == 0
    shutil.rmtree(store / "c")  # so that any read would fail with exit code 3
    model = run("fit", store, "-k", 2, "--model", "m.zarr")
    assert model.exit_code == 5
    assert "m.zarr exists already (a " in model.stderr
    assert "were appended since that fit, add them: --update m.zarr" in " ".join(model.stderr.split())
    assert "--overwrite" in model.stderr
    wrong = run("fit", "nowhere.zarr", "-k", 2, "--model", "m.zarr")  # the first mistake to correct
    assert (wrong.exit_code, "nowhere.zarr" in wrong.stderr, "exists already" in wrong.stderr) == (3, True, False)
    assert run("fit", store, "--model", "new.zarr", "--scores", "s.zarr").exit_code == 5
    assert run("transform", store, "--model", "m.zarr", "--scores", "s.zarr").exit_code == 5
    assert run("ingest", store, "s.zarr").exit_code == 5


BEFORE_ANY_READ: dict[str, tuple[tuple[str, ...], str, str]] = {  # a command, the library it lacks, the message
    "report": (("report", "m.zarr", "--rows", "rows.zarr"), "matplotlib", "figures need matplotlib"),
    "foreign scores": (
        ("fit", "rows.zarr", "--model", "n.zarr", "--scores", "s.xlsx"),
        "",
        "s.xlsx: .xlsx cannot be written",
    ),
    "foreign model": (
        ("fit", "rows.zarr", "--model", "n.pkl"),
        "",
        "n.pkl: .pkl cannot be written here. Choose .zarr.",
    ),
    "foreign update": (("fit", "rows.zarr", "--update", "m.zarr", "--model", "n.npz"), "", "n.npz: .npz cannot be"),
    "foreign report": (
        ("report", "m.zarr", "--rows", "rows.zarr", "--out", "r.pdf"),
        "",
        "r.pdf: .pdf cannot be written",
    ),
}


@pytest.mark.parametrize(("arguments", "missing", "message"), BEFORE_ANY_READ.values(), ids=BEFORE_ANY_READ)
def test_what_a_result_needs_is_looked_for_before_any_read(
    arguments: tuple[str, ...], missing: str, message: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bp.PCA(2).fit(np.eye(12)).save("m.zarr")
    shutil.rmtree(store / "c")  # so that any read would fail with another message
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    before = sorted(Path.cwd().iterdir())
    result = run(*arguments)
    assert result.exit_code == 3
    assert message in " ".join(result.stderr.split())
    assert sorted(Path.cwd().iterdir()) == before


def test_overwrite_replaces_model_and_scores(store: Path) -> None:
    command = ("fit", store, "--model", "m.zarr", "--scores", "s.zarr", "--overwrite")
    assert run(*command, "-k", 2).exit_code == run(*command, "-k", 3).exit_code == 0
    assert bp.load("m.zarr").n_components_ == bp.open("s.zarr").shape[1] == 3


def test_a_plan_that_does_not_fit_exits_4_with_the_numbers(store: Path) -> None:
    result = run("fit", store, "--memory-limit", "1MiB")
    assert result.exit_code == 4
    assert "1.0 MiB" in result.stderr
    assert "Progress" not in result.stderr  # nothing had begun


def test_missing_chunks_exit_3_and_can_be_filled(store: Path) -> None:
    (store / "c" / "1" / "0").unlink()
    assert run("fit", store, "-k", 2).exit_code == 3
    filled = ("--missing-chunks", "fill", "--nan-policy", "omit")
    assert run("fit", store, "-k", 2, *filled).exit_code == 0


@pytest.mark.parametrize("text", ["", "MiB", "-1GiB", "1XB", "1e999", "0", "1.2.3"])
def test_sizes_that_are_none_are_rejected(text: str) -> None:
    with pytest.raises(Exception, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("512MiB", 2**29), ("1.5 kB", 1500), ("2G", 2 * 10**9)])
def test_sizes_are_read_with_their_units(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(("text", "value"), [("7", 7), ("0.9", 0.9), ("1.0", 1.0), ("mle", "mle"), ("all", None)])
def test_numbers_of_components_keep_their_kind(text: str, value: object) -> None:
    found = PARAMETERS["n_components"].read(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_a_port_where_no_scheduler_speaks_exits_7_in_bounded_time(
    words: bytes, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigpca.cli.runtime.CONNECT_SECONDS", 1)
    talks = []

    def answer() -> None:
        while True:
            try:
                talks.append(server.accept()[0])
                if words:
                    talks[-1].sendall(words)
                    talks[-1].shutdown(socket.SHUT_WR)
            except OSError:  # all is closed
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        result = run("fit", store, "--scheduler", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    for talk in talks:
        talk.close()
    assert result.exit_code == 7
    assert "no Dask scheduler answered at tcp://127.0.0.1" in result.stderr


def test_an_output_that_would_destroy_the_source_or_another_output_is_rejected_even_with_overwrite(store: Path) -> None:
    before = sorted(p.name for p in store.rglob("*"))
    Path("link.zarr").symlink_to(store)
    for model in (store, "link.zarr", store.parent):
        result = run("fit", store, "-k", 2, "--model", model, "--overwrite")
        assert result.exit_code == 5
        assert "are the same path, or one contains the other, so writing one would destroy the other" in result.stderr
    for outputs in (
        ("--model", "a", "--scores", "a"), ("--model", "a", "--checkpoint", "a"), ("--model", "a", "--scores",
            "a/scores")
    ):  # fmt: skip
        result = run("fit", store, "-k", 2, *outputs, "--overwrite")
        assert result.exit_code == 5
        assert "Choose another path" in result.stderr
    assert not Path("a").exists()
    assert run("fit", store, "-k", 2, "--model", "m.zarr").exit_code == 0
    assert run("transform", store, "--model", "m.zarr", "--scores", store, "--overwrite").exit_code == 5
    assert run("transform", store, "--model", "m.zarr", "--scores", "m.zarr", "--overwrite").exit_code == 5
    assert sorted(p.name for p in store.rglob("*")) == before


def test_outputs_may_lie_in_the_folder_of_shards_that_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.random.default_rng(0).standard_normal((50, 4)))
    model, scores = tmp_path / "m.zarr", tmp_path / "s.zarr"
    assert run("fit", tmp_path, "-k", 2, "--model", model, "--scores", scores).exit_code == 0
    assert bp.open(scores).shape == (50, 2)


def test_a_place_where_no_output_can_be_written_is_rejected_before_any_read(store: Path) -> None:
    shutil.rmtree(store / "c")  # so that any read would fail
    Path("file").write_text("mine")
    Path("folder").mkdir()
    Path("folder", "mine").write_text("mine")
    result = run("fit", store, "-k", 2, "--model", "file/m.zarr")
    assert result.exit_code == 5
    assert "the model file/m.zarr cannot be created" in result.stderr
    assert "is not a folder. Choose another path" in result.stderr
    result = run("fit", store, "-k", 2, "--scores", "file/s.zarr")
    assert "the scores store file/s.zarr cannot be created" in result.stderr
    for taken in ("file", "folder"):
        result = run("fit", store, "-k", 2, "--model", taken, "--overwrite")
        assert result.exit_code == 5
        assert "overwriting replaces only" in result.stderr


def test_a_folder_that_may_not_be_written_is_rejected_before_any_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(store / "c")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "is not writable. Choose another path" in run("fit", store, "-k", 2).stderr


@pytest.mark.parametrize("output", ["model", "scores"])
def test_a_disk_too_full_for_model_or_scores_is_rejected_before_any_read(
    store: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    shutil.rmtree(store / "c")
    monkeypatch.setattr("bigpca.storage.free_bytes", lambda place: 100 if output == "model" else 20_000)
    result = run("fit", store, "-k", 2, "--scores", "s.zarr")
    assert result.exit_code == 4
    assert f"the {output}" in result.stderr
    assert "of disk, but" in result.stderr
    assert "Free space, or write to another disk" in result.stderr


def test_an_error_on_the_way_out_of_an_interrupt_is_an_interrupt() -> None:
    error = RuntimeError("cannot schedule new futures after shutdown")
    assert exit_code_for(error) is ExitCode.UNEXPECTED
    error.__context__ = KeyboardInterrupt()
    assert exit_code_for(error) is ExitCode.INTERRUPTED


@pytest.mark.parametrize("option", ["--model", "--scores"])
@pytest.mark.parametrize("length", [220, 300])
def test_a_name_longer_than_the_file_system_takes_is_rejected_before_any_read(
    option: str, length: int, store: Path
) -> None:
    shutil.rmtree(store / "c")  # so that any read would fail with exit code 3
    result = run("fit", store, "-k", 2, option, "x" * length)
    assert result.exit_code == 5
    assert f"its name has {length} bytes, but at most 209 are possible here" in result.stderr


def test_names_of_every_length_that_is_left_are_written(store: Path) -> None:
    model, scores = "m" * 209, "s" * 209
    for options in ((), ("--overwrite",)):
        assert run("fit", store, "-k", 2, "--model", model, "--scores", scores, *options).exit_code == 0
    assert run("ingest", store, "i" * 209).exit_code == 0


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", ["model.zarr", "s.zarr"])
def test_an_error_of_writing_is_none_of_the_input(
    name: str, number: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        if name in path.name:
            raise OSError(number, "no", str(path))

    monkeypatch.setattr("bigpca.storage.files.fsync_tree", fail)
    result = run("fit", store, "-k", 2, "--scores", "s.zarr")
    assert result.exit_code == (4 if number == errno.EDQUOT else 5)
    assert f"{name} cannot be written (no)" in result.stderr
