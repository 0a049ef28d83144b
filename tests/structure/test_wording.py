"""What must not stand in this tree: unfinished work, and traces of where and how it was made."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.helpers.tree import ROOT, files, module, place, tracked

if TYPE_CHECKING:
    from pathlib import Path

# Spelt in pieces so that this file does not find itself.
_UNWANTED = {
    "unfinished work": r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b",
    "a package registry": r"\bpypi\.o" r"rg\b|pythonho" r"sted\.|download\.pyt" r"orch\.",
    "a folder of the workplace": r"(?<![\w.])/wo" r"rk/|(?<![\w.])/tmp/w" r"t/",
    "an issue's number": r"\b[Ii]ss" r"ue #?\d+\b|(?<![\w&])#\d+\b(?!\s*:)",
    "who wrote it": r"\b[Aa]ge" r"nts?\b|\bL" r"LMs?\b",
}
_TEXT = {".py", ".pyi", ".cpp", ".h", ".inc", ".def", ".md", ".toml", ".yaml", ".json", ".txt", ""}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError:
        return []


def test_nothing_unwanted_is_written_anywhere() -> None:
    patterns = {what: re.compile(text) for what, text in _UNWANTED.items()}
    found = [
        f"{place(path, number)} names {what}: {line.strip()[:80]}"
        for path in tracked()
        if path.suffix in _TEXT and path.name != "LICENSE"
        for number, line in enumerate(_lines(path), 1)
        for what, pattern in patterns.items()
        if pattern.search(line)
    ]
    assert found == []


def test_native_code_has_no_libtorch() -> None:
    pattern = re.compile(r"#include\s*[<\"](torch|ATen|c10)/|find_package\(Torch")
    found = [
        place(path, number)
        for path in files("csrc", suffixes=(".cpp", ".h", ".inc", ".txt"))
        for number, line in enumerate(_lines(path), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_nothing_is_unpickled() -> None:
    found = []
    for path in files("wtransport"):
        for node in ast.walk(module(path)):
            match node:
                case ast.Import(names=names):
                    imported = {item.name.split(".")[0] for item in names}
                case ast.ImportFrom(module=str(name)):
                    imported = {name.split(".")[0]}
                case _:
                    continue
            if imported & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}:
                found.append(place(path, node.lineno))
    assert found == []


def test_tracked_files_hold_no_build_output() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix in {".so", ".o", ".a", ".pyc", ".whl"} or path.name == "CMakeCache.txt"
    ]
    assert found == []
