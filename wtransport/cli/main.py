"""``wtransport``: one line a command, whose module is imported when it is called."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from wtransport.recorder.process import library_version

app = typer.Typer(
    name="wtransport",
    help="Moves model weights from trainers to generators, while both go on working.",
    no_args_is_help=True,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"wtransport {library_version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _register(name: str, module: str, summary: str, attribute: str = "app") -> None:
    """Add the command *name*, which hands its arguments to the typer object *attribute* of *module*."""

    def run(context: typer.Context) -> None:
        command: typer.Typer = getattr(importlib.import_module(module), attribute)
        command(args=list(context.args), prog_name=f"wtransport {name}")

    # The command's own parser sees every argument, --help included.
    app.command(
        name,
        help=summary,
        add_help_option=False,
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "allow_interspersed_args": False,
        },
    )(run)


_register("trace", "wtransport.cli.trace", "Show what members did, from their flight records.")
_register("doctor", "wtransport.cli.doctor", "Say what can run on this machine, and why not.")
_register("serve", "wtransport.cli.serve", "Run the coordinator of a job alone.")
_register("members", "wtransport.cli.members", "List a job's members: state, version held, lag, last seen.")
_register("exclude", "wtransport.cli.steer", "Put a member out of its job.", "exclude")
_register("admit", "wtransport.cli.steer", "Let an excluded member come back.", "admit")
_register("replace", "wtransport.cli.steer", "Put a member out and give its place to another.", "replace")
_register("demo", "wtransport.cli.demo", "Train a small policy while generators follow its weights.")
