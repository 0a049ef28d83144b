"""``wtransport trace show``: flight records of running, closed and killed members."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wtransport.recorder.format import Op
from wtransport.recorder.show import json_of, op_names, ring_line, table_of
from wtransport.recorder.timeline import find_rings, read_timeline

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _trace() -> None:
    """Show what a job's members did, from their flight records."""


def _check_ops(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if name.upper() not in Op.__members__:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(op_names())}")
    return names


@app.command()
def show(
    path: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", exists=True, help="A ring, a job's folder, or the state directory."),
    ],
    last: Annotated[int, typer.Option(min=1, metavar="N", help="Show the last N.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    op: Annotated[
        list[str] | None,
        typer.Option(callback=_check_ops, help="Only this operation (repeat for more)."),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option("--failed", help="Only what failed, was cancelled, or was cut short."),
    ] = False,
) -> None:
    """Show the last operations, merged by wall-clock time; exit code 1 if there are none."""
    timeline = read_timeline(find_rings(path))
    ops = [Op[name.upper()] for name in op or ()]
    entries = timeline.select(ops=ops, failed=failed, last=last)
    errors = Console(stderr=True, soft_wrap=True)
    for item in timeline.unreadable:
        errors.print(Text(f"skipped: {item.reason}"))
    if as_json:
        print(json.dumps(json_of(timeline, entries), indent=2))
    elif entries:
        # A pipe has no width of its own: there, rows must not be folded at 80 columns.
        console = Console(width=None if Console().is_terminal else 240)
        console.print(table_of(entries))
        for ring in timeline.rings:
            console.print(Text(ring_line(ring)))
    if not entries:
        errors.print(Text(f"nothing found in {path}"))
        raise typer.Exit(1)
