"""Generator groups: all ranks are shown the same versions in the same order (P4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId
from wtransport.session.messages import Release, Show


@dataclass
class Group:
    """One group of more than one rank.

    Attributes:
        seq: Number of the last SHOW.
        shown: What it showed.
        ready: By rank, versions verified and kept there.
        taken: By rank, the last number its user was given.
    """

    size: int
    seq: int = 0
    shown: Identity | None = None
    members: dict[int, MemberId] = field(default_factory=dict)
    ready: dict[int, set[Identity]] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    shown_to: set[int] = field(default_factory=set)

    def join(self, rank: int, member: MemberId, seq: int, shown: Identity | None) -> None:
        """A rank joined or re-declared: the highest sequence declared is completed."""
        self.members[rank] = member
        self.ready[rank] = set()
        self.taken[rank] = seq
        self.shown_to.discard(rank)
        if seq > self.seq and shown is not None:
            self.seq, self.shown, self.shown_to = seq, shown, set()
        if shown is not None and shown == self.shown:
            self.shown_to.add(rank)

    def lose(self, rank: int) -> list[tuple[MemberId, object]]:
        """P4: a lost rank suspends SHOWs; unshown READYs of the survivors are released."""
        self.members.pop(rank, None)
        self.shown_to.discard(rank)
        self.taken.pop(rank, None)
        self.ready.pop(rank, None)
        messages: list[tuple[MemberId, object]] = []
        for other, member in sorted(self.members.items()):
            messages += [(member, Release(identity)) for identity in sorted(self.ready[other])]
            self.ready[other] = set()
        return messages

    def step(self) -> list[tuple[MemberId, object]]:
        """Messages that are due: completing the last SHOW at a replacement first, then the next one."""
        if len(self.members) != self.size:
            return []
        messages: list[tuple[MemberId, object]] = []
        if self.shown is not None and len(self.shown_to) < self.size:
            lacking = [rank for rank in sorted(self.members) if rank not in self.shown_to]
            if all(self.shown in self.ready[rank] for rank in lacking):
                for rank in lacking:
                    messages.append((self.members[rank], Show(self.seq, self.shown)))
                    self.ready[rank].discard(self.shown)
                    self.taken[rank] = self.seq - 1
                self.shown_to = set(self.members)
                return messages
        if self.shown_to == set(self.members) and any(self.taken.get(rank, 0) < self.seq for rank in self.members):
            return []
        common = set.intersection(*(self.ready[rank] for rank in self.members))
        newer = [identity for identity in common if self.shown is None or identity > self.shown]
        if not newer:
            return self._release_hopeless()
        self.shown = max(newer)
        self.seq += 1
        self.shown_to = set(self.members)
        for rank, member in sorted(self.members.items()):
            messages.append((member, Show(self.seq, self.shown)))
            messages += [(member, Release(identity)) for identity in sorted(self.ready[rank]) if identity < self.shown]
            self.ready[rank] = {identity for identity in self.ready[rank] if identity > self.shown}
        return messages

    def _release_hopeless(self) -> list[tuple[MemberId, object]]:
        """A rank that went on to a newer version never holds an older one again: others keep none that could only be shown with it."""
        messages: list[tuple[MemberId, object]] = []
        for rank, member in sorted(self.members.items()):
            others = [self.ready[other] for other in self.members if other != rank]
            for identity in sorted(self.ready[rank]):
                if any(identity not in ready and any(item > identity for item in ready) for ready in others):
                    messages.append((member, Release(identity)))
                    self.ready[rank].discard(identity)
        return messages
