"""The committed stub of the native module is what the built module generates."""

from __future__ import annotations

import difflib
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.helpers.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_native_stub_is_up_to_date(tmp_path: Path) -> None:
    fresh = tmp_path / "_native.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "wtransport._native", "-o", fresh],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    committed = ROOT / "wtransport" / "_native.pyi"
    difference = difflib.unified_diff(committed.read_text().splitlines(), fresh.read_text().splitlines(), "committed", "fresh")
    report = "\n".join(difference)
    assert not report, f"run `make stub`:\n{report}"
