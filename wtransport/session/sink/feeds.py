"""What one version's parts come from: the ranks of a publication, or one holder that serves a pull."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from wtransport.session.identity import MemberId


class FeedState(enum.Enum):
    """Whether a feed's boxes have been shared out among its contributors."""

    COLLECTING = "collecting"
    ASSIGNING = "assigning"
    READY = "ready"
    MISMATCHED = "mismatched"


@dataclass
class Feed:
    """Contributors by rank, and the manifest digest each declared.

    ``serial`` is the sink's number of the assignment in force: a Begin that follows an older one is dropped, its source hears Want again.
    ``provisional``: the manifests are older than the binding; that they do not fit says nothing until a version of them is put.
    """

    name: str
    world_size: int
    contributors: dict[int, MemberId] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    state: FeedState = FeedState.COLLECTING
    serial: int = 0
    mismatch: str = ""
    mismatch_deadline: float | None = None
    provisional: bool = False

    @property
    def whole(self) -> bool:
        """Whether every rank's manifest is here."""
        return len(self.contributors) == self.world_size

    @property
    def sole(self) -> MemberId | None:
        """The only contributor, when there is but one: it may be granted credit ahead (P2)."""
        return self.contributors[0] if self.world_size == 1 and self.whole else None

    def rank_of(self, member: MemberId) -> int | None:
        """The rank *member* contributes as."""
        for rank, contributor in self.contributors.items():
            if contributor == member:
                return rank
        return None


class Feeds:
    """The feeds a sink knows."""

    def __init__(self) -> None:
        self.by_name: dict[str, Feed] = {}
        self.serial = 0

    def declare(self, name: str, world_size: int, rank: int, member: MemberId, digest: bytes) -> Feed:
        """A contributor's manifest arrived; returns the feed, which must be shared out anew if it is whole and changed."""
        feed = self.by_name.get(name)
        if feed is None or feed.world_size != world_size:
            feed = self.by_name[name] = Feed(name, world_size)
        if feed.contributors.get(rank) != member or feed.digests.get(rank) != digest:
            feed.contributors[rank] = member
            feed.digests[rank] = digest
            feed.state = FeedState.COLLECTING
            feed.provisional = False
        return feed

    def start_assigning(self, feed: Feed) -> bool:
        """Move to ASSIGNING if there is something to share out; a fresh serial outdates earlier assignments."""
        if not feed.whole or feed.state is not FeedState.COLLECTING:
            return False
        self.serial += 1
        feed.serial = self.serial
        feed.state = FeedState.ASSIGNING
        return True

    def forget(self, member: MemberId) -> None:
        """A contributor is gone: its feeds are no longer whole."""
        for name, feed in list(self.by_name.items()):
            rank = feed.rank_of(member)
            if rank is not None:
                del feed.contributors[rank]
                feed.digests.pop(rank, None)
                feed.state = FeedState.COLLECTING
                if not feed.contributors:
                    del self.by_name[name]

    def restart(self, *, rebound: bool) -> None:
        """A new binding: every feed is shared out anew. One that takes the place of another may be ahead of the trainers."""
        for feed in self.by_name.values():
            feed.state = FeedState.COLLECTING
            feed.mismatch, feed.mismatch_deadline, feed.provisional = "", None, rebound

    def sole_ready(self) -> Feed | None:
        """The one push feed with a sole contributor that may be given credit."""
        ready = [feed for feed in self.by_name.values() if feed.state is FeedState.READY and not feed.name.startswith("pull:")]
        return ready[-1] if len(ready) >= 1 and ready[-1].sole is not None else None
