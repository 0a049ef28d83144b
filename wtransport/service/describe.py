"""What can be said of a job's members and a member's links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wtransport.service.member import MemberService
    from wtransport.session.messages import MemberStatus


@dataclass(frozen=True)
class MemberInfo:
    """One member.

    Attributes:
        state: ``live``; ``stalled`` (it beats, its Python does not run); or, of one that is gone, ``excluded`` or ``lost``.
        cause: Why it is not live.
        incarnation: Its present admission: 128 random bits, hex.
        ordinal: (term, n) of the admission; the higher of two under one name is the living one.
        version: Newest version it holds, of its part if it is a trainer; None if it holds none.
        publication: That version's publication, as ``term.n``.
        lag: Newest version to be had minus the one it holds; None if there is none, or it holds none.
        seen_s: Age of its last heartbeat, seconds; None if it is not live.
        progress_s: Age of its Python's last progress as that heartbeat had it, seconds.
        losses: How often it was lost under this name since it was last admitted by hand.
    """

    name: str
    role: str
    group: str | None
    rank: int
    world_size: int
    state: str
    cause: str
    incarnation: str
    ordinal: tuple[int, int]
    addresses: tuple[str, ...]
    version: int | None
    publication: str | None
    lag: int | None
    seen_s: float | None
    progress_s: float | None
    losses: int


@dataclass(frozen=True)
class LinkInfo:
    """One data link: ``direction`` is ``to`` (this member writes) or ``from``."""

    peer: str
    direction: str
    backend: str
    reason: str
    rejected: tuple[tuple[str, str], ...]


def describe_members(statuses: Iterable[MemberStatus]) -> tuple[MemberInfo, ...]:
    """The coordinator's report as the user reads it."""
    return tuple(_info(status) for status in statuses)


def _info(status: MemberStatus) -> MemberInfo:
    record, held = status.record, status.held
    return MemberInfo(
        name=record.name,
        role=record.role,
        group=record.group or None,
        rank=record.rank,
        world_size=record.world_size,
        state=status.state,
        cause=status.cause,
        incarnation=record.member,
        ordinal=record.ordinal,
        addresses=record.urls,
        version=held.version if held is not None else None,
        publication=str(held.publication) if held is not None else None,
        lag=status.lag,
        seen_s=status.seen_s,
        progress_s=status.progress_s,
        losses=status.losses,
    )


def describe_links(service: MemberService) -> tuple[LinkInfo, ...]:
    """The links that are up."""
    links = [
        LinkInfo(link.name, "to", link.backend, "chosen by the sink", ())
        for link in service.source.links.links.values()
        if link.endpoint is not None
    ]
    for up in service.sink.links.links.values() if service.sink is not None else ():
        if up.ready and up.choice is not None:
            links.append(LinkInfo(up.record.name, "from", up.choice.backend, up.choice.reason, up.choice.rejected))
    return tuple(links)
