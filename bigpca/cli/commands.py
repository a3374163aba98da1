"""The application behind ``bigpca``: all commands, their exit codes, and usage errors as JSON.

Commands import what they need when they run, so that ``bigpca --help`` is fast.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bigpca.cli.demonstration import demo
from bigpca.cli.diagnosis import doctor
from bigpca.cli.exits import MEANINGS, ExitCode
from bigpca.cli.fitting import fit, plan
from bigpca.cli.output import Output
from bigpca.cli.pictures import plot, report
from bigpca.cli.scoring import transform
from bigpca.cli.stores import info, ingest, verify

_EXIT_CODES = "Exit codes:\n\n" + "\n\n".join(f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items())

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # Click's, whose place depends on the version of Typer


class _Commands(TyperGroup):
    """The commands; a usage error is also a JSON object if ``--json`` is among the arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["bigpca.json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            if ctx.meta["bigpca.json"]:
                message: Any = error
                Output(as_json=True, debug=False).say_error(error, message.format_message(), ExitCode.USAGE)
            raise


app = typer.Typer(
    name="bigpca",
    cls=_Commands,
    help="PCA of data that does not fit in memory: planned, bounded, resumable.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (plan, fit, transform, report, plot, info, ingest, verify, demo, doctor):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bigpca {version('bigpca')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
