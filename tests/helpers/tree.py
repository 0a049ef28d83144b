"""The files of this project, for tests that look at the tree itself."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = {"build", "dist"}


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    """Every file under *folders* of the root with one of *suffixes*, in order."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and not _SKIPPED & set(path.relative_to(ROOT).parts)
    )


def tracked() -> list[Path]:
    """Every file that git tracks or would track; without git, every file of the known folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        return sorted(path for name in listing.stdout.decode().split("\0") if (path := ROOT / name).is_file())
    known = ("wtransport", "csrc", "tests", "bench", "examples")
    return sorted(path for folder in known for path in (ROOT / folder).rglob("*") if path.is_file())


@cache
def module(path: Path) -> ast.Module:
    """The syntax tree of one Python file."""
    return ast.parse(path.read_text(), filename=str(path))


def place(path: Path, line: int) -> str:
    """Name a line the way compilers do."""
    return f"{path.relative_to(ROOT)}:{line}"
