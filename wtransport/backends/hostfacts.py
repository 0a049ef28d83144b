"""What two members must know of each other's machine to choose how bytes move between them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from wtransport.errors import ProtocolError, exhausted


@dataclass(frozen=True)
class HostFacts:
    """Where a process runs; exchanged over control.

    Attributes:
        boot_id: Random number of the kernel's boot: equal on one host and its containers.
        pid_namespace: Inode of the process's pid namespace.
        net_namespace: Inode of its network namespace: abstract Unix sockets live in one.
        uid: Effective user.
        process: Names this very process (of that boot), also after its pid was used again.
        host: The machine's name, for people.
    """

    boot_id: str
    pid_namespace: int
    net_namespace: int
    uid: int
    process: str
    host: str

    @classmethod
    def collect(cls) -> Self:
        """Look at this process; reads a few small files under ``/proc``, so not on an event loop.

        What cannot be read stays unique to this process, so that nothing is taken for shared.

        Raises:
            ResourceError: If there is no descriptor left to read them with.
        """
        pid, unique = os.getpid(), os.urandom(16).hex()
        try:
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            started = _started("self")
            pid_namespace = os.stat("/proc/self/ns/pid").st_ino
            net_namespace = os.stat("/proc/self/ns/net").st_ino
        except OSError as error:
            if (none_left := exhausted(error, "read what host this is")) is not None:
                raise none_left from error
            boot_id, started, pid_namespace, net_namespace = f"unknown-{unique}", "0", 0, 0
        process = f"{pid_namespace}:{pid}:{started}"
        return cls(boot_id, pid_namespace, net_namespace, os.geteuid(), process, socket.gethostname()[:128] or "unnamed")

    @property
    def known(self) -> bool:
        """Whether the machine could be identified."""
        return not self.boot_id.startswith("unknown-")

    @property
    def whereabouts(self) -> str:
        """Where to find the process, for people."""
        return f"pid {self.process.split(':')[1]} on host {self.host}"

    def open_process(self, wire: object) -> int | None:
        """A pidfd of the process that *wire* describes; None if it is not one of this host and pid namespace, or has ended.

        A process whose sockets live on in a child that it forked ends without an end of file: this is how that is seen.
        """
        try:
            other = HostFacts.from_wire(wire)
            if not self.known or (self.boot_id, self.pid_namespace) != (other.boot_id, other.pid_namespace):
                return None
            _, pid, started = other.process.split(":")
            pidfd = os.pidfd_open(int(pid))
        except (ProtocolError, ValueError, OverflowError, OSError):
            return None
        try:
            if _started(pid) == started:
                return pidfd
        except OSError:
            pass
        os.close(pidfd)  # that number is another process's by now
        return None

    def to_wire(self) -> dict[str, object]:
        """Return the map that travels in a control message."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Check and decode what :meth:`to_wire` made.

        Raises:
            ProtocolError: If fields are missing or unknown, of another type, or out of range.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(wire, dict) or wire.keys() != names:
            raise ProtocolError("a host's description has missing or unknown fields")
        for name in ("boot_id", "process", "host"):
            if not isinstance(wire[name], str) or not 0 < len(wire[name]) <= 128:
                raise ProtocolError(f"a host's {name} is no short text")
        if wire["process"].count(":") != 2:
            raise ProtocolError("a host's process is not namespace:pid:start")
        for name in ("pid_namespace", "net_namespace", "uid"):
            if type(wire[name]) is not int or not 0 <= wire[name] < 1 << 63:
                raise ProtocolError(f"a host's {name} is out of range")
        return cls(**wire)


def _started(pid: str) -> str:
    """When a process started, in clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
