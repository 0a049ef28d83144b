"""``python -m bench``."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from bench import put as put_bench
from bench import tensors as tensors_bench
from bench.figure import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.figure import Figure

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Measure the library against what the machine can do."""


@app.command()
def put(
    gib: Annotated[list[float], typer.Option(help="Size of the weights; repeat for more.")] = [1.0],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=5, help="Measured rounds of each case.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="Copy threads of the put and of its limit.")] = 2,
    json_out: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 if a target is not met.")] = False,
) -> None:
    """Puts over shm and tcp, their first round, their costs, and the latency of 4 KiB."""
    torch.set_num_threads(1)
    cases = (put_bench.run(size, rounds, threads) for size in gib)
    _report(itertools.chain(put_bench.latency(300), *cases), json_out=json_out, check=check)


@app.command()
def tensors(
    mib: Annotated[float, typer.Option(min=1.0, help="Bytes of the weights, however many tensors they are.")] = 64.0,
    rounds: Annotated[int, typer.Option(min=5, help="Measured puts of each case.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Copy threads of the put.")] = 2,
    json_out: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Equal bytes in 1 to 100,000 tensors: the cost of a tensor and the bandwidth, as two fitted terms."""
    torch.set_num_threads(1)
    _report(tensors_bench.run(mib, rounds, threads), json_out=json_out, check=False)


def _report(measured: Iterable[Figure], *, json_out: bool, check: bool) -> None:
    said = Console(stderr=True, width=160, highlight=False)
    figures: list[Figure] = []
    for figure in measured:
        said.print(f"{figure.name}: {_value(figure)} {_ratio(figure)}", style="dim")
        figures.append(figure)
    if json_out:
        print(json.dumps(as_json(figures), indent=2))
    else:
        Console(width=160).print(_table(figures))
    if check and any(figure.met is False for figure in figures):
        raise typer.Exit(1)


def _table(figures: list[Figure]) -> Table:
    table = Table("figure", "value", "ratio", "min..max", "target", "met", "n")
    for item in figures:
        spread = f"{item.spread[0]:.2f}..{item.spread[1]:.2f}" if item.spread else ""
        met = "" if item.met is None else ("yes" if item.met else "NO")
        table.add_row(item.name, _value(item), _ratio(item), spread, item.target, met, str(item.rounds or ""))
    return table


def _value(item: Figure) -> str:
    return f"{item.value:.2f} {item.unit}"


def _ratio(item: Figure) -> str:
    return f"{item.ratio:.3f}" if item.ratio is not None else ""


if __name__ == "__main__":
    app()
