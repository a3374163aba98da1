"""The application behind ``bigpca``: all commands, their exit codes, and usage errors as JSON.

Commands import what they need when they run, so that ``bigpca --help`` is fast.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bigpca import __version__
from bigpca.cli.diagnosis import demo, doctor
from bigpca.cli.fitting import fit, plan, transform
from bigpca.cli.models import export, report
from bigpca.cli.options import grouped, sections
from bigpca.cli.output import MEANINGS, ExitCode, Streams, paragraph, wrapped
from bigpca.cli.stores import info, ingest, verify

_EXIT_CODES = "Exit codes:\n\n" + "\n\n".join(f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items())

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # Click's, whose place depends on the version of Typer
COMMANDS = (demo, ingest, plan, fit, transform, report, export, info, verify, doctor)
EXAMPLES = {command.__name__: sections(command)["Examples"].splitlines() for command in COMMANDS}


class _Commands(TyperGroup):
    """The commands; a usage error is also a JSON object if ``--json`` is among the arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["bigpca.json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            wrong: Any = error
            output = Streams(ctx.meta["bigpca.json"], debug=False)
            if wrong.ctx is not None:
                typer.echo(wrong.ctx.get_usage(), err=True)
            typer.echo(
                "\n".join(wrapped(f"bigpca: {paragraph(wrong.format_message())}", min(80, output.width))), err=True
            )
            output.say_error(error, wrong.format_message(), ExitCode.USAGE)
            raise typer.Exit(int(ExitCode.USAGE)) from None


app = typer.Typer(
    name="bigpca",
    cls=_Commands,
    help="PCA of data that does not fit in memory: planned, bounded, resumable.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    epilog = "\n\n".join(("Examples:", *EXAMPLES[command.__name__]))
    app.command(help=sections(command)[""], epilog=epilog)(grouped(command))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bigpca {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
