"""What a member can say of its job and its links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wtransport.service.member import MemberService


@dataclass(frozen=True)
class MemberInfo:
    """One member.

    Attributes:
        incarnation: Its present admission: 128 random bits, hex.
        ordinal: (term, n) of the admission; the higher of two under one name is the living one.
    """

    name: str
    role: str
    group: str | None
    rank: int
    world_size: int
    incarnation: str
    ordinal: tuple[int, int]
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class LinkInfo:
    """One data link: ``direction`` is ``to`` (this member writes) or ``from``."""

    peer: str
    direction: str
    backend: str
    reason: str
    rejected: tuple[tuple[str, str], ...]


def describe_members(service: MemberService) -> tuple[MemberInfo, ...]:
    """The roster, in order of admission."""
    records = sorted(service.context.membership.members.values(), key=lambda item: item.ordinal)
    return tuple(
        MemberInfo(item.name, item.role, item.group or None, item.rank, item.world_size, item.member, item.ordinal, item.urls)
        for item in records
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
