"""failing: how a command tells of a TransportError."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from wtransport.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def failing(as_json: bool = False) -> Iterator[None]:
    """Print the error and exit with 1: red on stderr, or with *as_json* as one JSON document on stdout."""
    try:
        yield
    except TransportError as error:
        if as_json:
            print(json.dumps({"error": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}))
        else:
            text = f"{type(error).__name__}: {error}"
            Console(stderr=True, soft_wrap=True).print(text, style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
