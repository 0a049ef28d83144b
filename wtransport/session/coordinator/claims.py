"""Claims to a place that a member holds: they wait until that one is found alive, or lost (P5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wtransport.session.identity import MemberId
from wtransport.session.messages import Join, MemberRecord, Refused

_TAKEN_HINT = "stop it first, or take its place with takeover=True or `wtransport replace`; a second job needs an address of its own"


@dataclass
class Claim:
    """A Join that waits for news of those in its way.

    Attributes:
        holders: Who has the place, or says another world size; they go as they are lost.
        since: When it was made, by the coordinator's clock: a sign of life counts only if it is younger.
    """

    join: Join
    beat_token: bytes
    holders: set[MemberId]
    since: float

    def refusal(self, holder: MemberRecord, where: str) -> Refused:
        """What the newcomer is told once *holder* is known to be alive; *where* says how to find it."""
        join, who = self.join, f"{holder.name} ({holder.role} rank {holder.rank} of {holder.world_size})"
        same_name = holder.name == join.name
        if same_name or (holder.role, holder.group, holder.rank) == (join.role, join.group, join.rank):
            taken = f"the name {join.name}" if same_name else f"rank {join.rank}"
            return Refused("join_refused", f"{taken} is taken: {who} is alive, {where}", _TAKEN_HINT, False)
        text = f"{join.name} says world_size={join.world_size}, but {who} is alive, {where}"
        return Refused("join_refused", text, "give all the same", False)


class Claims:
    """Claims by the incarnation that makes them."""

    def __init__(self) -> None:
        self._claims: dict[MemberId, Claim] = {}

    def make(self, join: Join, beat_token: bytes, holders: Iterable[MemberRecord], now: float) -> None:
        """*join* waits until one of *holders* is alive, or all are lost."""
        self._claims[join.member] = Claim(join, beat_token, {item.member for item in holders}, now)

    def contested(self) -> dict[MemberId, float]:
        """Members whose life is in question, and since when."""
        since: dict[MemberId, float] = {}
        for claim in self._claims.values():
            for member in claim.holders:
                since[member] = max(since.get(member, claim.since), claim.since)
        return since

    def alive(self, member: MemberId) -> list[Claim]:
        """*member* lives: the claims against it have failed."""
        failed = [claim for claim in self._claims.values() if member in claim.holders]
        for claim in failed:
            del self._claims[claim.join.member]
        return failed

    def gone(self, member: MemberId) -> list[Claim]:
        """*member* is no member any more, or has stopped waiting for its own claim; returns the claims nobody is in the way of now."""
        self._claims.pop(member, None)
        for claim in self._claims.values():
            claim.holders.discard(member)
        free = [claim for claim in self._claims.values() if not claim.holders]
        for claim in free:
            del self._claims[claim.join.member]
        return free
