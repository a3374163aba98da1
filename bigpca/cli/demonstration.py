"""``bigpca demo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bigpca.cli import options as o
from bigpca.cli.exits import ExitCode
from bigpca.cli.groups import grouped
from bigpca.cli.output import plain, reporting
from bigpca.cli.runs import PassCounter, shown
from bigpca.errors import format_bytes
from bigpca.passes.engine.events import format_seconds
from bigpca.passes.engine.progress import TerminalProgress

if TYPE_CHECKING:
    from bigpca.demo import DemoReport


@grouped
def demo(
    shows: o.Shows,
    small: Annotated[bool, typer.Option("--small", help="A sixteenth of the data: a few seconds.")] = False,
    directory: Annotated[Path, typer.Option("--dir", help="Where to work (3 GiB free for the full size).")] = Path(
        "bigpca-demo"
    ),
) -> None:
    """Fit 515,000 x 768 image patches (1.5 GiB) in a budget of 512 MiB, and draw their leading components."""
    with reporting(shows.as_json, shows.debug, quiet=shows.quiet) as output:
        from bigpca.demo import run_demo

        with TerminalProgress() as bar:
            report = run_demo(directory, small=small, progress=tuple(shown(PassCounter(), bar, output)))
        output.show(_summary(report))
        output.say(f"\nNext: bigpca report {report.model}")
        output.finish({"command": "demo", "within_budget": report.within_budget, **plain(report)})
        if not report.within_budget:
            raise typer.Exit(int(ExitCode.SPACE))


def _summary(report: DemoReport) -> dict[str, object]:
    steps = ", ".join(f"{name} {format_seconds(value)}" for name, value in report.seconds.items())
    baseline = format_bytes(report.baseline_bytes)
    rows: dict[str, object] = {
        "data": f"{report.n_samples:,} x {report.n_features} float32 = {format_bytes(report.data_bytes)}",
        "solver": f"{report.solver}, {report.passes} read{'' if report.passes == 1 else 's'} of the data",
        "peak memory": f"{format_bytes(report.peak_bytes)} measured above {baseline} idle, all processes",
        "memory budget": f"{format_bytes(report.budget_bytes)}: {'kept' if report.within_budget else 'EXCEEDED'}",
        "time": f"{format_seconds(sum(report.seconds.values()))} ({steps})",
        "variance captured": f"{100 * report.variance_captured:.2f} % by {report.n_components} components",
        "data store": report.store,
        "model": report.model,
        "scores": report.scores,
        "picture": report.picture or "not drawn: matplotlib is missing (pip install 'bigpca[plot]')",
    }
    return rows
