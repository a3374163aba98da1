"""What a user sees in a terminal of 80 and of 120 columns."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from bigpca.cli.commands import COMMANDS, app
from tests.cli.terminal import Shown, shown


def names(seen: Shown) -> list[str]:
    """The names of the rows of all tables."""
    return [line.split("  ")[0] for line in seen.lines if re.match(r"[a-z ]+  +\S", line) and not line.startswith(" ")]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_fit_shows_a_plan_of_six_rows_a_table_and_what_to_do_next(store: Path, columns: int) -> None:
    seen = shown("fit", store, "-k", 2, "--solver", "krylov", "--scores", "s.zarr", columns=columns)
    assert seen.exit_code == 0, seen.stream
    assert max(map(len, seen.lines)) <= columns
    assert names(seen) == [
        "data", "solver", "reads", "time", "peak memory", "limit", "writes",
        "captured", "converged", "bounds", "reads", "time", "peak memory", "model", "scores",
    ]  # fmt: skip
    assert not [line for line in seen.lines if re.search(r"(about|most|of) \d+$", line)]  # a number without its unit
    for line in (line for line in seen.lines if line.startswith("pca")):
        value, _, _, low, high = map(float, line.split()[1:])
        assert low <= value <= high
    assert seen.lines[-1] == "Next: bigpca report model.zarr --scores s.zarr"
    assert sum("idle" in line for line in seen.lines) <= 1
    assert not [line for line in seen.lines if "starting" in line or "%|" in line]


def test_ctrl_c_removes_the_bar_and_the_same_command_resumes_where_it_stopped(tall: Path) -> None:
    command = ("fit", tall.name, "-k", 3, "--model", "m.zarr", "--checkpoint", "run.ckpt")
    half = shown(*command, columns=80, slow=True, interrupt=lambda text: re.search(r"[2-9]\d%", text) is not None)
    assert half.exit_code == 130, half.stream
    at = half.lines.index("bigpca: interrupted.")
    assert half.lines[at - 1].split() == ["run.ckpt"]  # the plan's last row: nothing of the bar is left
    assert half.lines[at + 2] == "  bigpca fit tall.zarr -k 3 --model m.zarr --checkpoint run.ckpt"
    after = shown(*command, columns=80)
    assert after.exit_code == 0, after.stream
    found = re.search(r"resumed from run.ckpt: (\d+) of 16 groups of moments are done", after.stream)
    assert found is not None
    shares = [int(share) for share in re.findall(r"(\d+)%", after.stream)]
    assert shares == sorted(shares)
    assert shares[0] >= 100 * int(found[1]) // 16
    assert any(re.match("checkpoint +no longer needed: rm -r run.ckpt", line) for line in after.lines)


def test_wrong_usage_that_is_found_late_leaves_no_sign_of_life_on_the_screen(store: Path) -> None:
    seen = shown("fit", store, "--kernel", "gaussian", columns=80)
    assert (seen.exit_code, seen.lines[0]) == (2, "Usage: bigpca fit [OPTIONS] {SOURCE}...")


@pytest.mark.parametrize("command", [command.__name__ for command in COMMANDS])
def test_every_option_and_argument_has_a_help_text(command: str) -> None:
    found: Any = typer.main.get_command(app)
    shown = {one.name: one.help for one in found.commands[command].params if one.name != "help"}
    assert shown
    assert not [name for name, text in shown.items() if not text]
