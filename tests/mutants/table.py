"""Write what ``run.py`` found as a Markdown table: ``table.py FOLDER SOURCE LATER_SOURCE > table.md``.

``FOLDER`` holds the files described in README.md; the sources are copies of the repository at the two commits there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mutations import Mutant

REASONS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("reasons.json").read_text(encoding="utf-8"))


def outcome(number: str, row: dict[str, object]) -> str:
    if row["killed by"]:
        return f"{'killed by' if row['kept'] else 'LOST: killed only by'} {row['killed by']}"
    (kind,) = (kind for kind, reasons in REASONS.items() if number in reasons)
    return f"{kind}: {REASONS[kind][number]}"


def main(folder: Path, source: Path, later_source: Path) -> None:
    mutants = [(Mutant(**json.loads(line)), source, "") for line in (folder / "drawn.jsonl").read_text().splitlines()]
    for row in map(json.loads, (folder / "later.jsonl").read_text().splitlines()):
        before = mutants[row["mutant"]][0]
        where = f" ({'in place of' if row['redrawn'] else 'then'} {before.file.removeprefix('bigpca/')}:{before.line})"
        mutants[row["mutant"]] = Mutant(**row["fault"]), later_source, where
    rows = {row["mutant"]: row for row in map(json.loads, (folder / "results.jsonl").read_text().splitlines())}
    print("| mutant | fault | outcome |\n|---|---|---|")
    for number, (mutant, at, where) in enumerate(mutants):
        shown = mutant.shown(at).replace("|", "\\|")
        said = outcome(str(number), rows[number]).replace("|", "\\|")
        print(f"| {number} {mutant.file.removeprefix('bigpca/')}:{mutant.line}{where} | `{shown}` | {said} |")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
