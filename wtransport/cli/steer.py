"""``wtransport exclude``, ``admit``, ``replace``: what an orchestrator tells a job from the shell."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from wtransport.cli.failing import failing
from wtransport.config import TransportConfig
from wtransport.service import operator

exclude = typer.Typer(add_completion=False)
admit = typer.Typer(add_completion=False)
replace = typer.Typer(add_completion=False)

Url = Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The member's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@exclude.command()
def _exclude(
    url: Url,
    name: Name,
    reason: Annotated[str, typer.Option(help="What members and records are told.")] = "excluded by an operator",
    as_json: Json = False,
) -> None:
    """Put NAME out of the job at URL: it keeps its last version, is told, and may come back after admit."""
    _steer(url, "exclude", name, as_json, reason=reason)


@admit.command()
def _admit(url: Url, name: Name, as_json: Json = False) -> None:
    """Let the excluded member NAME come back into the job at URL."""
    _steer(url, "admit", name, as_json)


@replace.command()
def _replace(
    url: Url,
    name: Name,
    other: Annotated[str, typer.Argument(metavar="NEW", help="The member that may have its place.")],
    as_json: Json = False,
) -> None:
    """Put NAME out of the job at URL for good; NEW, started before or after, may have its rank and group."""
    _steer(url, "replace", name, as_json, other=other)


def _steer(url: str, verb: str, name: str, as_json: bool, *, reason: str = "", other: str = "") -> None:
    with failing(as_json):
        asyncio.run(operator.steer(url, TransportConfig.from_env(), verb, name, reason=reason, other=other))
        done = {"exclude": "excluded", "admit": "admitted", "replace": f"replaced by {other}"}[verb]
        print(json.dumps({"member": name, "done": done}) if as_json else f"{name} is {done}")
