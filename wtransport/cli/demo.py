"""``wtransport demo``: a policy is trained here while others sample with the weights they follow."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Time for training; the policy is as large as fits.")] = 60.0,
    generators: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that sample.")] = 2,
    backend: Annotated[str, typer.Option(help="What moves the bytes: auto, shm or tcp.")] = "auto",
    seed: Annotated[int, typer.Option(help="Fixes first weights, prompts and draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Train a transformer by policy gradient in one process, sample in others, all at once.

    Every step's weights are put; generators sample with the newest they hold. Exit code 1 if the
    reward did not rise or anything that was moved is not what was put.
    """
    from wtransport.demo.main import meeting_place, open_standard_streams, run
    from wtransport.demo.spec import Spec
    from wtransport.demo.view import Silent, print_result, view

    open_standard_streams()
    spec = Spec(
        url=meeting_place(),
        backend=backend,
        seconds=seconds,
        generators=generators,
        seed=seed,
    )
    console = Console()
    try:
        if as_json:
            result = run(spec, Silent())
            print(json.dumps(asdict(result), indent=2))
        else:
            with view(console) as shown:
                result = run(spec, shown)
            print_result(console, result)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted; every process of the run has been stopped")
        raise typer.Exit(130) from None
    if result.problems:
        raise typer.Exit(1)
