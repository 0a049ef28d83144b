"""The version ledger: which ranks put what, who holds it, and whether it is committed or available (P3, P9)."""

from __future__ import annotations

from dataclasses import dataclass, field

from wtransport.session.identity import Identity, MemberId
from wtransport.session.messages import Holding


@dataclass
class VersionState:
    """One version.

    Attributes:
        ranks: Trainer ranks whose put was admitted.
        settled: Ranks whose put ended well.
        holders: Who holds which parts of it, and how.
        overtaken: Sinks at which it has been declared overtaken (once each, P2).
        withdrawn_by: Who asked to withdraw it, while or after the sinks were asked.
        awaiting: Sinks that have not answered the withdrawal.
        installed: Whether any sink ever installed it.
        dead: Withdrawn and installed nowhere: the number is dead in its publication (P3).
    """

    identity: Identity
    world_size: int
    ranks: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    holders: dict[MemberId, Holding] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)
    overtaken: set[MemberId] = field(default_factory=set)
    withdrawn_by: str = ""
    awaiting: set[MemberId] = field(default_factory=set)
    withdraw_deadline: float | None = None
    installed: bool = False
    announced: bool = False
    dead: bool = False

    @property
    def whole(self) -> tuple[MemberId, ...]:
        """Members that hold every part."""
        return tuple(sorted(member for member, item in self.holders.items() if len(item.parts) == self.world_size))

    @property
    def parts(self) -> tuple[MemberId, ...]:
        """Members that together hold every part, rank by rank; empty if they do not."""
        by_rank = {rank: member for member, item in sorted(self.holders.items()) if item.kind != "slot" for rank in item.parts}
        return tuple(dict.fromkeys(by_rank[rank] for rank in sorted(by_rank))) if len(by_rank) == self.world_size else ()

    @property
    def available(self) -> bool:
        """P9: live holders cover it, and every rank's put is in (or a sink proved it whole)."""
        return not self.dead and (self.installed or len(self.settled) == self.world_size) and bool(self.whole or self.parts)

    @property
    def committed(self) -> bool:
        """P9: installed or snapshot parts cover the whole; a reference does not count, it may change at any time."""
        covered: set[int] = set()
        for item in self.holders.values():
            if item.kind != "reference":
                covered.update(item.parts)
        return not self.dead and len(covered) == self.world_size


class Ledger:
    """Versions by identity; only what somebody holds or puts is kept."""

    def __init__(self) -> None:
        self.versions: dict[Identity, VersionState] = {}

    def get(self, identity: Identity, world_size: int) -> VersionState:
        """The version's state, made on first use."""
        return self.versions.setdefault(identity, VersionState(identity, world_size))

    def hold(self, member: MemberId, holding: Holding) -> VersionState:
        """*member* holds a version; a generator's slot replaces what its slot held before."""
        state = self.get(holding.identity, holding.world_size)
        state.holders[member] = holding
        if holding.kind == "slot":
            state.installed = True
        if len(holding.parts) == 1 and holding.kind != "slot":
            state.digests[holding.parts[0]] = holding.digest
        for other in self.versions.values():
            if holding.kind == "slot" and other.identity < holding.identity:
                other.holders.pop(member, None)
        return state

    def drop(self, member: MemberId, identity: Identity | None = None) -> list[VersionState]:
        """*member* holds *identity* (None: anything) no more; returns the versions that lost their last cover by it."""
        lost = []
        for state in self.versions.values():
            if identity in (None, state.identity) and member in state.holders:
                before = state.available
                del state.holders[member]
                if before and not state.available:
                    lost.append(state)
        self.prune()
        return lost

    def prune(self) -> None:
        """Forget versions that nobody holds or puts, below the newest available one."""
        newest = self.newest_available()
        if newest is not None:
            for key, state in list(self.versions.items()):
                ended = state.dead or state.ranks == state.settled
                if key < newest.identity and not state.holders and ended and state.withdraw_deadline is None:
                    del self.versions[key]

    def newest_available(self) -> VersionState | None:
        """The newest version that live members cover."""
        return max((item for item in self.versions.values() if item.available), key=lambda item: item.identity, default=None)

    def committed_version(self, version: int) -> VersionState | None:
        """The newest committed state under that number, of any publication."""
        found = [item for item in self.versions.values() if item.identity.version == version and item.committed]
        return max(found, key=lambda item: item.identity, default=None)
