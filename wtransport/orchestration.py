"""Orchestration: what an outside orchestrator, or any member, may ask of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from wtransport.errors import ConfigError
from wtransport.service.describe import LinkInfo, MemberInfo, describe_links

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from wtransport.eventlog import EventLog
    from wtransport.service.member import MemberService
    from wtransport.service.thread import ServiceThread
    from wtransport.session.messages import EventNotice

T = TypeVar("T")


class Orchestration:
    """The part of a transport that looks at the job and steers it; the same from the shell: ``wtransport members``."""

    _events: EventLog

    async def members(self) -> tuple[MemberInfo, ...]:
        """The job's members as the coordinator knows them now, and those that were lost or put out; asked anew at every call.

        Raises:
            PeerLostError: If there is no coordinator at the moment.
        """
        return await self._run(self._serving()[1].members())

    def events(self) -> AsyncIterator[EventNotice]:
        """Yield what happens in the job from now on; the kinds of events are listed in the README."""
        return self._events.follow()

    async def exclude(self, name: str, reason: str) -> None:
        """Put a member out of the job; it keeps its last version, is told, and may come back after ``admit``.

        Raises:
            ConfigError: If no member is called so, or it hosts the coordinator.
            PeerLostError: If there is no coordinator at the moment; nothing was done.
        """
        await self._steer("exclude", name, reason)

    async def admit(self, name: str) -> None:
        """Let an excluded member come back; how often it was lost is forgotten.

        Raises:
            ConfigError: If it is not excluded.
            PeerLostError: If there is no coordinator at the moment; nothing was done.
        """
        await self._steer("admit", name)

    async def replace(self, old: str, new: str) -> None:
        """Put *old* out of the job for good and let the member called *new* have its place, rank and group included.

        *new* may be started before or after. A member that restarts under its own name needs none of this.

        Raises:
            ConfigError: If no member is, or was, called *old*, or it hosts the coordinator.
            PeerLostError: If there is no coordinator at the moment; nothing was done.
        """
        await self._steer("replace", old, other=new)

    async def describe(self) -> tuple[LinkInfo, ...]:
        """The data links of this member: peer, backend, and why that one."""
        return await self._run(self._describe())

    async def _describe(self) -> tuple[LinkInfo, ...]:
        return describe_links(self._serving()[1])

    async def _steer(self, verb: str, name: str, reason: str = "", other: str = "") -> None:
        complaint = await self._run(self._serving()[1].steer(verb, name, reason, other))
        if complaint:
            raise ConfigError(f"{verb} {name}: {complaint}")

    def _serving(self) -> tuple[ServiceThread, MemberService]:
        raise NotImplementedError

    async def _run(self, call: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError
