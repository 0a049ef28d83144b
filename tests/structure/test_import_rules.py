"""Imports point downwards; the contracts stand in pyproject.toml."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.helpers.tree import ROOT, files, module, place


def test_import_contracts_are_kept() -> None:
    outcome = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_policy_and_planning_do_not_know_the_native_core() -> None:
    found = []
    for path in files("wtransport/session", "wtransport/weights"):
        for node in ast.walk(module(path)):
            match node:
                case ast.Import(names=names):
                    imported = {item.name for item in names}
                case ast.ImportFrom(module=str(name), names=names):
                    imported = {f"{name}.{item.name}" for item in names} | {name}
                case _:
                    continue
            if any(name.startswith("wtransport._native") for name in imported):
                found.append(place(path, node.lineno))
    assert found == []
