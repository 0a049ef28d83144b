"""``wtransport doctor``: what can run on this machine, and why not."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wtransport.cli.doctor_checks import TRUSTED_NETWORK, run_checks

if TYPE_CHECKING:
    from wtransport.cli.doctor_check import Check

app = typer.Typer(add_completion=False)

_STYLES = {"ok": "green", "warning": "yellow", "unavailable": "red"}


def table_of(checks: list[Check]) -> Table:
    """One row a finding."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("hint", overflow="fold")
    for check in checks:
        table.add_row(
            Text(check.name),
            Text(check.status, style=_STYLES[check.status]),
            Text(check.reason),
            Text(check.hint),
        )
    return table


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what can run here and why not; exit code 1 if the library cannot work at all."""
    checks = run_checks()
    broken = [check for check in checks if check.required and check.status == "unavailable"]
    if as_json:
        listed = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"checks": listed, "notes": [TRUSTED_NETWORK], "usable": not broken}, indent=2))
    else:
        # A pipe has no width of its own: there, rows must not be folded at 80 columns.
        console = Console(width=None if Console().is_terminal else 200)
        console.print(table_of(checks))
        console.print(Text(TRUSTED_NETWORK))
        for check in broken:
            console.print(Text(f"Nothing works without {check.name}: {check.reason}", style="bold red"))
    if broken:
        raise typer.Exit(1)
