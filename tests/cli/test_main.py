"""The frame of the command line: help, version, commands that are imported when they are called."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run


def test_version(wtransport: Run) -> None:
    outcome = wtransport("--version")
    assert (outcome.returncode, outcome.stdout) == (0, f"wtransport {metadata.version('wtransport')}\n")


def test_help_lists_the_commands(wtransport: Run) -> None:
    outcome = wtransport("--help")
    assert outcome.returncode == 0
    for command in ("trace", "doctor"):
        assert command in outcome.stdout


@pytest.mark.parametrize("args", [(), ("nonsense",), ("--nonsense",), ("trace", "nonsense"), ("trace",), ("doctor", "--nonsense")])
def test_bad_usage_is_exit_code_2(wtransport: Run, args: tuple[str, ...]) -> None:
    assert wtransport(*args).returncode == 2


@pytest.mark.parametrize("args", [("trace", "--help"), ("trace", "show", "--help"), ("doctor", "--help")])
def test_a_command_answers_for_its_own_help(wtransport: Run, args: tuple[str, ...]) -> None:
    outcome = wtransport(*args)
    assert outcome.returncode == 0
    assert f"wtransport {' '.join(args[:-1])}" in outcome.stdout


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["trace", "--help"]])
def test_no_command_that_needs_no_torch_imports_it(run_python: Callable[..., Any], args: list[str]) -> None:
    def program(args: list[str]) -> None:
        import runpy
        import sys

        sys.argv = ["wtransport", *args]
        try:
            runpy.run_module("wtransport", run_name="__main__")
        except SystemExit:
            print("imported:", {"torch", "wtransport._native"} & set(sys.modules))

    outcome = run_python(program, args)
    assert "imported: set()" in outcome.stdout, outcome.stderr
