"""Which backend moves the bytes between two members: one pure function, and its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wtransport.backends.base import Capabilities, Unavailable
from wtransport.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wtransport.backends.hostfacts import HostFacts

AUTO = "auto"
# Best first. inproc is for programs that hold both ends on purpose, so it must be asked for.
_ORDER = ("shm", "tcp")


@dataclass(frozen=True)
class Choice:
    """The chosen backend.

    Attributes:
        backend: Its name.
        reason: Why it and not one before it, in a sentence.
        rejected: (name, why not) of every backend that was considered first.
        staged: Device memory goes through host memory on its way.
    """

    backend: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()
    staged: bool = False


def choose(
    local: HostFacts,
    remote: HostFacts,
    devices: tuple[str, str],
    available: Mapping[str, Capabilities | Unavailable],
    requested: str = AUTO,
) -> Choice:
    """Choose the backend of one link; both ends come to the same result.

    Args:
        local: This process.
        remote: The other one.
        devices: Device types (``cpu``, ``cuda``) of the local and the remote memory.
        available: What each backend said when it was probed; a backend that either end lacks is
            ``Unavailable``.
        requested: A backend's name, or ``auto``.

    Raises:
        UnsupportedError: If the requested backend, or every one, is out of the question; the
            message has the reasons.
    """
    staged = any(device != "cpu" for device in devices)
    where = _relation(local, remote)
    tail = ", staged through host memory" if staged else ""
    if requested != AUTO:
        why_not = _why_not(requested, local, remote, available)
        if why_not is not None:
            raise UnsupportedError(
                f"backend {requested} was asked for, but {why_not}",
                hint=f"available: {', '.join(_usable(local, remote, available)) or 'none'}",
            )
        return Choice(requested, f"asked for; {where}{tail}", staged=staged)
    rejected: list[tuple[str, str]] = []
    for name in _ORDER:
        why_not = _why_not(name, local, remote, available)
        if why_not is None:
            return Choice(name, f"{where}{tail}", tuple(rejected), staged)
        rejected.append((name, why_not))
    reasons = "; ".join(f"{name}: {why_not}" for name, why_not in rejected)
    raise UnsupportedError(f"no backend can link these members ({reasons})")


def _relation(local: HostFacts, remote: HostFacts) -> str:
    if _same_process(local, remote):
        return "both ends are in one process"
    return "both ends are on one host" if _same_host(local, remote) else "the ends are on two hosts"


def _same_host(local: HostFacts, remote: HostFacts) -> bool:
    return local.known and local.boot_id == remote.boot_id


def _same_process(local: HostFacts, remote: HostFacts) -> bool:
    return _same_host(local, remote) and local.process == remote.process


def _why_not(
    name: str,
    local: HostFacts,
    remote: HostFacts,
    available: Mapping[str, Capabilities | Unavailable],
) -> str | None:
    found = available.get(name)
    if found is None:
        return "there is no such backend at both ends"
    if isinstance(found, Unavailable):
        return found.reason
    if name == "inproc" and not _same_process(local, remote):
        return "the ends are in two processes"
    if found.same_host_only and not _same_host(local, remote):
        return "the ends are on two hosts"
    if name == "shm":
        if local.uid != remote.uid:
            return f"the ends belong to two users (uid {local.uid} and {remote.uid})"
        if local.net_namespace != remote.net_namespace:
            return "the ends are in two network namespaces, where abstract sockets do not meet"
    return None


def _usable(local: HostFacts, remote: HostFacts, available: Mapping[str, Capabilities | Unavailable]) -> list[str]:
    return [name for name in available if _why_not(name, local, remote, available) is None]
