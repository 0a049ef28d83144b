"""Jobs of real processes on one machine: what tests and benchmarks kill, stop, cut off and replace."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self

from wtransport.testing.cluster.process import WAIT_S, PeerError, Process, until
from wtransport.testing.cluster.zygote import Zygote

if TYPE_CHECKING:
    from types import TracebackType

    from wtransport.testing.cluster.network import Host

__all__ = ["WAIT_S", "Cluster", "PeerError", "Process", "until"]


class Cluster:
    """Processes of one job; all are killed when it is closed.

    Args:
        url: The job's address; None for one that no other job uses and that leaves no file behind.
        config: ``TransportConfig`` fields of every member, as JSON has them.
        zygote: Who forks the processes; None for one of its own, which costs an import of torch.
    """

    def __init__(self, url: str | None = None, *, config: dict[str, Any] | None = None, zygote: Zygote | None = None) -> None:
        self.url = url or f"unix://@wtransport-cluster-{secrets.token_hex(8)}"
        self.config = config or {}
        self._owned = Zygote() if zygote is None else None
        self._zygote = zygote or self._owned
        self._processes: list[Process] = []

    def start(self, host: Host | None = None) -> Process:
        """A process that waits for commands, on *host* or on this one."""
        assert self._zygote is not None
        self._processes.append(Process(self._zygote, None if host is None else host.netns))
        return self._processes[-1]

    def member(
        self,
        role: str,
        *,
        at: str | None = None,
        config: dict[str, Any] | None = None,
        bind: dict[str, Any] | None = None,
        host: Host | None = None,
        **arguments: Any,
    ) -> Process:
        """A member in a process of its own, joined, and bound if it is a generator.

        Args:
            role: ``trainer`` or ``generator``.
            at: Another address than the job's.
            config: Fields that differ from the cluster's.
            bind: Arguments of the generator's ``bind`` command.
            host: Where it runs.
            **arguments: As for ``wtransport.connect``.
        """
        process = self.start(host)
        process.call("open", url=at or self.url, role=role, config=self.config | (config or {}), **arguments)
        if role == "generator":
            process.call("bind", **(bind or {}))
        return process

    def serve(self, host: Host | None = None, **config: Any) -> Process:
        """The coordinator alone, in a process of its own; the job's address is then the one it has bound."""
        process = self.start(host)
        self.url = process.call("serve", url=self.url, config=self.config | config)
        return process

    def close(self) -> None:
        """Kill every process and close what belongs to them."""
        for process in self._processes:
            process.end()
        self._processes.clear()
        if self._owned is not None:
            self._owned.close()
            self._owned = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()
