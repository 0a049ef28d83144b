"""``wtransport members``: who is in a job, and how they are."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wtransport.cli.failing import failing
from wtransport.config import TransportConfig
from wtransport.service import operator

if TYPE_CHECKING:
    from wtransport.service.describe import MemberInfo

app = typer.Typer(add_completion=False)

_STYLES = {"live": "green", "stalled": "yellow", "excluded": "yellow", "lost": "red"}


@app.command()
def members(
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the members of the job at URL, and those that were lost or put out.

    Settings are read from WTRANSPORT_<NAME>: WTRANSPORT_SECRET, WTRANSPORT_CONNECT_TIMEOUT_S.
    """
    with failing(as_json):
        found = asyncio.run(operator.members(url, TransportConfig.from_env()))
        if as_json:
            print(json.dumps({"members": [dataclasses.asdict(item) for item in found]}, indent=2))
        else:
            # A pipe has no width of its own: there, rows must not be folded at 80 columns.
            Console(width=None if Console().is_terminal else 200).print(_table(found))


def _table(found: tuple[MemberInfo, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("name", "role", "rank", "state", "version", "lag", "seen", "losses", "cause"):
        table.add_column(name, no_wrap=name != "cause", overflow="fold")
    for item in found:
        place = f"{item.rank}/{item.world_size}" + (f" of {item.group}" if item.group else "")
        seen = f"{item.seen_s:.1f} s ago" if item.seen_s is not None else ""
        numbers = ["" if value is None else str(value) for value in (item.version, item.lag)]
        state = Text(item.state, style=_STYLES[item.state])
        table.add_row(Text(item.name), item.role, Text(place), state, *numbers, seen, str(item.losses or ""), Text(item.cause))
    return table
