"""Write what ``run.py`` found as a Markdown table: ``table.py SOURCE > table.md``.

``SOURCE`` is a copy of the repository at the commit of ``drawn.jsonl``. Results of an earlier draw, which move.py left
as they were, say so.
"""

import json
import sys
from pathlib import Path
from typing import Any

from mutations import Mutant

HERE = Path(__file__).parent
REASONS: dict[str, dict[str, str]] = json.loads((HERE / "reasons.json").read_text(encoding="utf-8"))


def rows_of(name: str) -> dict[int, dict[str, Any]]:
    return {row["mutant"]: row for row in map(json.loads, (HERE / name).read_text().splitlines())}


def outcome(number: int, row: dict[str, Any], redrawn: bool) -> str:
    if row["killed by"]:
        said = f"{'killed by' if row['kept'] else 'LOST: killed only by'} {row['killed by']}"
    else:
        kinds = (kind for kind, reasons in REASONS.items() if str(number) in reasons)
        said = next((f"{kind}: {REASONS[kind][str(number)]}" for kind in kinds), "SURVIVED the tests that were run")
    if row.get("earlier"):
        return f"another fault, not run; the one before it: {said}" if redrawn else f"not run again; before: {said}"
    return said


def main(source: Path) -> None:
    results = rows_of("results.jsonl")
    print("| mutant | fault | outcome |\n|---|---|---|")
    for number, row in sorted(rows_of("drawn.jsonl").items()):
        mutant = Mutant(**row["fault"])
        shown, said = (
            text.replace("|", "\\|")
            for text in (mutant.shown(source), outcome(number, results[number], row["redrawn"]))
        )
        print(f"| {number} {mutant.file.removeprefix('bigpca/')}:{mutant.line} | `{shown}` | {said} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
