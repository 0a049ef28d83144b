"""``wtransport serve``: the coordinator alone."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer
from rich.console import Console

from wtransport.cli.failing import failing
from wtransport.config import TransportConfig
from wtransport.service.coordinator.standalone import serve as serve_coordinator

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    url: Annotated[str, typer.Argument(metavar="URL", help="tcp://host:port, tcp://[v6]:port, unix:///path or unix://@name.")],
) -> None:
    """Run the coordinator of one job at URL until SIGINT or SIGTERM.

    The job's secret is read from WTRANSPORT_SECRET; without one only members of this user on this host are admitted.
    """
    console = Console(stderr=True, soft_wrap=True)
    with failing():
        asyncio.run(_serve(url, TransportConfig.from_env(), console))


async def _serve(url: str, config: TransportConfig, console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def bound(addresses: tuple[str, ...]) -> None:
        for address in addresses:
            # On stdout, one a line: what a launcher reads when it asked for port 0.
            print(address, flush=True)
        console.print("the coordinator serves; members keep their versions when it ends", highlight=False)

    await serve_coordinator(url, config, stop, bound)
