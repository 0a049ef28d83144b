"""The process that writes a ring, and whether it still runs: facts of ``/proc``, no surer than they."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What tells one process from every other on hosts that share a folder.

    Attributes:
        pid: Its number in its PID namespace.
        start_ticks: When it started, in clock ticks since boot; 0 if unknown.
        boot_id: The kernel's boot id; empty if unknown.
        pid_namespace: Inode of its PID namespace; 0 if unknown.
        hostname: Its host's name.
    """

    pid: int
    start_ticks: int
    boot_id: str
    pid_namespace: int
    hostname: str

    @classmethod
    def current(cls) -> ProcessIdentity:
        """The calling process."""
        pid = os.getpid()
        found = _start_ticks(pid)
        return cls(
            pid=pid,
            start_ticks=found or 0,
            boot_id=_boot_id(),
            pid_namespace=_pid_namespace(),
            hostname=socket.gethostname(),
        )

    def alive(self) -> bool | None:
        """Whether it runs now; None where that cannot be known (another host or PID namespace)."""
        boot_id = _boot_id()
        if not boot_id or not self.boot_id:
            return None
        if self.boot_id != boot_id:
            return False if self.hostname == socket.gethostname() else None
        if not self.pid_namespace or self.pid_namespace != _pid_namespace():
            return None
        start_ticks = _start_ticks(self.pid)
        if start_ticks is not None:
            return start_ticks == self.start_ticks
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return None
        # It exists but is not running: a zombie, whose memory and threads are gone; or /proc hides
        # it, then nothing is known.
        return False if Path(f"/proc/{self.pid}").exists() else None


def library_version() -> str:
    """Version of the installed library; ``unknown`` in a source tree that was never installed."""
    try:
        return metadata.version("wtransport")
    except metadata.PackageNotFoundError:
        return "unknown"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _start_ticks(pid: int) -> int | None:
    """Start time of a running process; None if there is none, or only its zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19])
