"""What one process holds, and what a test left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path

_SETTLE_S = 5.0
_POLL_S = 0.01
# Kept for the life of the process by the interpreter, torch and numpy once first used.
_LASTING_FDS = ("/dev/null", "/dev/urandom", "/dev/random", "/proc/", "/sys/")
_LASTING_THREADS = ("pt_", "OpenBLAS", "gomp", "cuda")
_LASTING_CHILDREN = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True)
class Held:
    """Everything that a test must give back, each item named for a report."""

    descriptors: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]
    shared_memory: frozenset[str]
    mappings: frozenset[str]

    def since(self, before: Held) -> list[str]:
        """Say what is held now and was not held *before*, one line a kind."""
        return [
            f"{field.name.replace('_', ' ')}: {', '.join(sorted(extra))}"
            for field in fields(self)
            if (extra := getattr(self, field.name) - getattr(before, field.name))
        ]


def held() -> Held:
    """Look at this process now."""
    return Held(_descriptors(), _threads(), _children(), _shared_memory(), _mappings())


def left_behind(before: Held) -> list[str]:
    """Wait until nothing more is held than *before*, at most 5 seconds; return what still is.

    Threads that are ending and children that are being reaped get the time to do so. Garbage is
    collected only when something is left at first sight: a collection costs more than most tests.
    """
    if not held().since(before):
        return []
    gc.collect()
    give_up = time.monotonic() + _SETTLE_S
    while extra := held().since(before):
        if time.monotonic() > give_up:
            return extra
        time.sleep(_POLL_S)
    return []


def _descriptors() -> frozenset[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if not target.startswith(_LASTING_FDS):
            found.add(f"fd {fd} -> {target}")
    return frozenset(found)


def _threads() -> frozenset[str]:
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = set()
    for tid in os.listdir("/proc/self/task"):
        try:
            command = Path(f"/proc/self/task/{tid}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not command.startswith(_LASTING_THREADS):
            found.add(f"{python.get(int(tid), command)} (tid {tid})")
    return frozenset(found)


def _children() -> frozenset[str]:
    found = set()
    for tid in os.listdir("/proc/self/task"):
        try:
            children = Path(f"/proc/self/task/{tid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for pid in children:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                command = b""
            if not any(lasting in command for lasting in _LASTING_CHILDREN):
                words = command.replace(b"\0", b" ").decode(errors="replace").strip()
                found.add(f"pid {pid} ({words[:80] or 'ended, not reaped'})")
    return frozenset(found)


def _shared_memory() -> frozenset[str]:
    try:
        entries = list(os.scandir("/dev/shm"))
    except FileNotFoundError:
        return frozenset()
    found = set()
    for entry in entries:
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.add(entry.path)
        except FileNotFoundError:
            continue
    return frozenset(found)


def _mappings() -> frozenset[str]:
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        columns = line.split(maxsplit=5)
        if len(columns) == 6 and columns[5].startswith("/memfd:") and "wtransport" in columns[5]:
            found.add(f"{columns[5]} (inode {columns[4]})")
    return frozenset(found)
