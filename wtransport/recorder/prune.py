"""Keeps a job's folder small: rings of dead processes go, but for the newest."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from wtransport.recorder.reader import RingFormatError, read_header

if TYPE_CHECKING:
    from pathlib import Path

KEPT_RINGS: Final = 64


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
