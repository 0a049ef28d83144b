"""Versions on their way into a sink: landing in a slot, or waiting for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId


@dataclass
class Landing:
    """One version landing in one slot.

    Attributes:
        deadline: When ranks that have not begun are given up on, if the version can be had from its holders.
        parted: Ranks whose part is written, of those that began.
        followers: Sources of other feeds that offered the same version meanwhile: they learn how it ends, and write nothing.
    """

    identity: Identity
    feed: str
    world_size: int
    parts: int
    slot: int
    generation: int
    begun: dict[int, MemberId] = field(default_factory=dict)
    parted: set[int] = field(default_factory=set)
    followers: set[MemberId] = field(default_factory=set)
    verifying: bool = False
    deadline: float = 0.0

    def lacks(self, feed: str, rank: int) -> bool:
        """Whether that rank of its feed has not begun it."""
        return self.feed == feed and self.world_size > 1 and rank not in self.begun

    @property
    def whole(self) -> bool:
        """Whether every rank's part is written (P3)."""
        return len(self.parted) == self.world_size

    def parties(self) -> set[MemberId]:
        """Everyone who waits for the result."""
        return set(self.begun.values()) | self.followers


@dataclass
class Waiting:
    """One version that has begun and has no slot yet; ``behind`` at the deadline unless it is overtaken (P2)."""

    identity: Identity
    feed: str
    world_size: int
    parts: int
    deadline: float
    begun: dict[int, MemberId] = field(default_factory=dict)
    followers: set[MemberId] = field(default_factory=set)
    superseded: bool = False

    def join(self, feed: str, rank: int, source: MemberId) -> None:
        """A source began it: as a rank of the feed it will land from, or with another feed, to learn how that ends."""
        if feed == self.feed:
            self.begun[rank] = source
        else:
            self.followers.add(source)

    def leave(self, source: MemberId) -> bool:
        """A source is gone; whether any of the feed's is left."""
        self.begun = {rank: member for rank, member in self.begun.items() if member != source}
        self.followers.discard(source)
        return bool(self.begun)

    def parties(self) -> set[MemberId]:
        """Everyone who waits for the result."""
        return set(self.begun.values()) | self.followers


@dataclass
class PullState:
    """A pull under way: the members asked, and when to try others."""

    identity: Identity
    members: tuple[MemberId, ...]
    deadline: float
    asked: bool = False
