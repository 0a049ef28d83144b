"""The book of a sink's landings: which version lands in which slot, how it ends, and who is told."""

from __future__ import annotations

from collections import Counter, OrderedDict

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, NO_PUBLICATION, Identity, MemberId, Publication
from wtransport.session.sink.catchup import CatchUp
from wtransport.session.sink.feeds import Feed, Feeds
from wtransport.session.sink.landing import Landing, Waiting
from wtransport.session.sink.shows import Shows
from wtransport.session.sink.slots import Slot, SlotState, SlotTable

_REMEMBERED = 256


class LandingBook:
    """What ``Sink`` keeps, and how one landing moves on.

    Args:
        group_size: Ranks of this generator's group; above one, versions are shown by the coordinator's order only (P4).
        stall_timeout_s: How long a pull may go without an answer before other holders are asked.
        mismatch_grace_s: How long a feed of several ranks may not fit the binding before the user is told (ranks change one by one).
    """

    def __init__(self, *, group_size: int, stall_timeout_s: float, mismatch_grace_s: float = 1.0) -> None:
        self.out: list[act.Action] = []
        self.binding = 0
        self.slots = SlotTable(0)
        self.feeds = Feeds()
        self.landings: dict[Identity, Landing] = {}
        self.waiting: dict[Identity, Waiting] = {}
        self.settled: OrderedDict[Identity, object] = OrderedDict()
        self.floor: Publication = NO_PUBLICATION
        self.rewound: Publication = NO_PUBLICATION
        self.dropped: Counter[str] = Counter()
        self.shows = Shows(self, group_size)
        self.catchup = CatchUp(self, stall_timeout_s)
        self.stall_timeout_s = stall_timeout_s
        self.mismatch_grace_s = mismatch_grace_s

    def advance(self, now: float) -> None:
        """Give free slots to who waits: a waiting version first, then a pull, then credit ahead."""
        if not self.binding:
            return
        for identity in sorted(self.waiting, reverse=True):
            waiting = self.waiting[identity]
            if waiting.superseded:
                continue
            slot = self.slots.writable()
            if slot is None:
                self._recall()
                break
            del self.waiting[identity]
            self._start_landing(slot, waiting, now, grant=True)
        self.catchup.advance(now)
        feed = self.feeds.sole_ready()
        slot = self.slots.writable()
        if feed is not None and feed.sole is not None and slot is not None and self.slots.credited() is None and not self.waiting:
            self._claim(slot, None)
            slot.granted.add(feed.sole)
            self.out.append(act.SendGrant(feed.sole, slot.index, slot.generation, None))

    def _orphaned(self) -> list[Landing]:
        """Landings that lack a rank's Begin though the version is available: that rank had ended its put before it knew this sink."""
        available = self.catchup.available
        if available is None:
            return []
        return [item for item in self.landings.values() if item.identity <= available.identity and len(item.begun) < item.world_size]

    def newer(self, identity: Identity, held: Identity) -> bool:
        """P1: later in order, and not lower in number unless a rewind lies between."""
        if identity <= held:
            return False
        return identity.version >= held.version or held.publication < self.rewound <= identity.publication

    def _refusal(self, identity: Identity) -> object | None:
        held = self.slots.newest_identity
        if identity.publication < self.floor and not self.catchup.wants(identity):
            return msg.Failed(identity, "stale", f"publication {self.floor} began", None)
        if held == identity:
            return msg.Installed(identity, self.binding, self.shows.holdings[identity])
        if held is not None and not self.newer(identity, held):
            return msg.Ahead(identity, held)
        return self.settled.get(identity) if not self.catchup.wants(identity) else None

    def _join_landing(self, landing: Landing, source: MemberId, message: msg.Begin, credit: Slot | None) -> None:
        self._return_credit(credit, source)
        if landing.feed != message.feed:
            landing.followers.add(source)
        elif message.rank not in landing.begun:
            landing.begun[message.rank] = source
            self.slots[landing.slot].granted.add(source)
            self.out.append(act.SendGrant(source, landing.slot, landing.generation, landing.identity))

    def _start_landing(self, slot: Slot, waiting: Waiting, now: float, *, grant: bool) -> None:
        identity, begun = waiting.identity, waiting.begun
        if grant:
            self._claim(slot, identity)
        else:
            slot.state, slot.identity = SlotState.LANDING, identity
        landing = Landing(identity, waiting.feed, waiting.world_size, waiting.parts, slot.index, slot.generation, dict(begun))
        landing.followers |= waiting.followers
        landing.deadline = now + self.stall_timeout_s
        self.landings[identity] = landing
        for source in begun.values() if grant else ():
            slot.granted.add(source)
            self.out.append(act.SendGrant(source, slot.index, slot.generation, identity))

    def _claim(self, slot: Slot, identity: Identity | None) -> None:
        if slot.state is SlotState.COMPLETE:
            self.out.append(act.SlotReused(slot.index))
        self.slots.claim(slot, identity)

    def _fail_landing(self, landing: Landing, code: str, text: str, gone: MemberId | None, tensor: str | None = None) -> None:
        self.landings.pop(landing.identity, None)
        answer = msg.Failed(landing.identity, code, text, tensor)
        self._settle(landing.identity, answer)
        self._tell(set(landing.begun.values()) - {gone}, answer)
        # Who only followed has not failed: its version is still wanted, and will be pulled.
        self._tell(landing.followers - {gone}, msg.Behind(landing.identity, text))
        slot = self.slots[landing.slot]
        if slot.generation == landing.generation:
            self.slots.drop(slot)
            self.out.append(act.RevokeGrants(slot.index))
        self.catchup.landing_failed(landing.identity)

    def _install(self, landing: Landing, slot: Slot, holding: msg.Holding) -> None:
        del self.landings[landing.identity]
        held = self.slots.newest_identity
        if held is not None and not self.newer(landing.identity, held):
            self.slots.drop(slot)
            self._tell(landing.parties(), msg.Ahead(landing.identity, held))
            return
        self.slots.install(slot)
        self.shows.installed(slot, landing.identity, holding)
        self.settled.pop(landing.identity, None)
        self._tell({*landing.parties(), COORDINATOR}, msg.Installed(landing.identity, self.binding, holding))

    def _supersede(self) -> None:
        newest = max(self.waiting)
        for identity, waiting in self.waiting.items():
            if identity < newest and not waiting.superseded:
                waiting.superseded = True
                self.out.append(act.Send(COORDINATOR, msg.Superseded(identity, newest)))

    def _share_out(self, feed: Feed) -> None:
        if self.binding and self.feeds.start_assigning(feed):
            self.out.append(act.AssignBoxes(feed.name))

    def _return_credit(self, credit: Slot | None, source: MemberId) -> None:
        if credit is not None:
            # The source writes already: it returns the slot once its works have settled.
            self.slots.drop(credit)

    def _recall(self) -> None:
        slot = self.slots.credited()
        if slot is not None:
            for member in slot.granted:
                self.out.append(act.Send(member, msg.Recall(slot.index, slot.generation)))

    def why_unwritable(self) -> str:
        """Who keeps the slots from being written."""
        leased = [slot.index for slot in self.slots.slots if slot.leases]
        alive = [slot.index for slot in self.slots.slots if not slot.leases and slot.tensors_alive and slot is not self.slots.shown]
        if leased:
            return f"slot {leased} is leased"
        return f"tensors over slot {alive} are still referenced" if alive else "no writable slot"

    def _settle(self, identity: Identity, answer: object) -> None:
        self.settled[identity] = answer
        while len(self.settled) > _REMEMBERED:
            self.settled.popitem(last=False)

    def _tell(self, members: set[MemberId] | set[MemberId | None], message: object) -> None:
        self.out += [act.Send(member, message) for member in sorted(item for item in members if item is not None)]
