"""Keeps flight rings few: those of dead processes go, but for the newest of a job, and of jobs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from wtransport.recorder.reader import RingFormatError, read_header

if TYPE_CHECKING:
    from pathlib import Path

KEPT_RINGS: Final = 64
KEPT_JOBS: Final = 64


def prune(folder: Path, kept: int = KEPT_RINGS) -> int:
    """Remove rings in *folder* whose process is known to be gone, except the *kept* newest.

    A ring that cannot be read, or whose process may run elsewhere, stays. Never raises.

    Returns:
        How many were removed.
    """
    dead: list[tuple[int, Path]] = []
    for path in folder.glob("*.ring"):
        with contextlib.suppress(OSError, RingFormatError):
            header = read_header(path)
            if header.closed or header.alive is False:
                dead.append((header.wall_open_ns, path))
    removed = 0
    for _, path in sorted(dead)[: max(0, len(dead) - kept)]:
        with contextlib.suppress(OSError):
            path.unlink()
            removed += 1
    return removed


def prune_jobs(state: Path, kept: int = KEPT_JOBS) -> int:
    """Remove the folders of jobs in *state* of which every process is known to be gone, except those of the *kept* newest jobs.

    Nothing but rings is removed: a folder that holds anything else stays. Never raises.

    Returns:
        How many were removed.
    """
    folders: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for path in state.iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir():
                    folders.append((path.stat().st_mtime, path))
    removed = 0
    for _, path in sorted(folders)[: max(0, len(folders) - kept)]:
        if not prune(path, kept=0):
            continue  # no job's, or one that somebody is still in
        with contextlib.suppress(OSError):
            path.rmdir()
            removed += 1
    return removed
