"""A file is one noun: none is longer than 400 lines."""

from __future__ import annotations

from tests.helpers.tree import ROOT, files

_LIMIT_LINES = 400
_SUFFIXES = (".py", ".pyi", ".cpp", ".h", ".inc", ".def")


def test_no_file_is_longer_than_400_lines() -> None:
    found = files("wtransport", "csrc", "tests", "bench", "examples", suffixes=_SUFFIXES)
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in found
        if path.name != "_native.pyi"  # generated
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > _LIMIT_LINES} == {}
