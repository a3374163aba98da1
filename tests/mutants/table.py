"""Write what ``run.py`` found as a Markdown table: ``table.py DRAWN RESULTS... SOURCE > table.md``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mutations import Mutant

# Why no test can notice the fault, by the number of the mutant.
EQUIVALENT: dict[str, str] = json.loads(Path(__file__).with_name("equivalent.json").read_text(encoding="utf-8"))


def outcome(number: int, row: dict[str, object] | None) -> str:
    if row is None:
        return "not run"
    if row["killed by"]:
        return f"killed by {row['killed by']}" if row["kept"] else f"LOST: killed only by {row['killed by']}"
    if str(number) in EQUIVALENT:
        return f"equivalent: {EQUIVALENT[str(number)]}"
    return "survived" if row["complete"] else "survived the tests that ran in the time"


def main(drawn: Path, results: list[Path], source: Path) -> None:
    mutants = [Mutant(**json.loads(line)) for line in drawn.read_text().splitlines()]
    rows = {row["mutant"]: row for path in results for row in map(json.loads, path.read_text().splitlines())}
    print("| mutant | fault | outcome |\n|---|---|---|")
    for number, mutant in enumerate(mutants):
        shown = mutant.shown(source).replace("|", "\\|")
        said = outcome(number, rows.get(number)).replace("|", "\\|")
        print(f"| {number} {mutant.file.removeprefix('bigpca/')}:{mutant.line} | `{shown}` | {said} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:-1]], Path(sys.argv[-1]))
