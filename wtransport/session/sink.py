"""The generator's machine: assembles versions in slots, decides behind, verifies, shows, and catches up (P1-P4, P7, P9)."""

from __future__ import annotations

from collections import Counter, OrderedDict

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.catchup import CatchUp
from wtransport.session.feeds import Feed, Feeds, FeedState
from wtransport.session.identity import COORDINATOR, NO_PUBLICATION, Identity, MemberId, Publication
from wtransport.session.landing import Landing, Waiting
from wtransport.session.shows import Shows
from wtransport.session.slots import Slot, SlotState, SlotTable

_REMEMBERED = 256


class Sink:
    """Sans-IO sink of one member and its current binding.

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
        self.mismatch_grace_s = mismatch_grace_s

    # The user.

    def bind(self, num_slots: int, now: float) -> int:
        """A new binding with *num_slots* populated slots; landings of the old one are dropped and its frames refused (P1)."""
        for landing in list(self.landings.values()):
            self._tell(landing.parties(), msg.Behind(landing.identity, "bound anew"))
        for waiting in self.waiting.values():
            self._tell(set(waiting.begun.values()), msg.Behind(waiting.identity, "bound anew"))
        self.landings.clear()
        self.waiting.clear()
        self.settled.clear()
        for slot in self.slots.slots:
            self.out.append(act.RevokeGrants(slot.index))
        self.binding += 1
        self.slots = SlotTable(num_slots)
        self.shows.rebound()
        self.feeds.restart()
        self.out.append(act.Send(COORDINATOR, msg.Bound(self.binding)))
        for feed in list(self.feeds.by_name.values()):
            self._share_out(feed)
        self.advance(now)
        return self.binding

    def lease(self, slot: int) -> None:
        """The user was given the slot's tensors."""
        self.slots[slot].leases += 1
        self.slots[slot].tensors_alive = True
        self.shows.taken()

    def pin(self, slot: int) -> None:
        """The slot is being served to another sink: it must not change."""
        self.slots[slot].leases += 1

    def lease_ended(self, binding: int, slot: int, now: float) -> None:
        """One lease, or one pin, of the slot ended."""
        if binding == self.binding:
            self.slots[slot].leases -= 1
            self.advance(now)

    def tensors_gone(self, binding: int, slot: int, now: float) -> None:
        """The last tensor over the slot's memory is gone."""
        if binding == self.binding:
            self.slots[slot].tensors_alive = False
            self.advance(now)

    # Sources.

    def on_source_manifest(self, source: MemberId, message: msg.SourceManifest, now: float) -> None:
        """A source says what it holds."""
        feed = self.feeds.declare(message.feed, message.world_size, message.rank, source, message.digest)
        self._share_out(feed)
        self.advance(now)

    def on_boxes_assigned(self, name: str, serial: int, mismatch: str, now: float) -> None:
        """The driver has shared the boxes out (and sent Want), or they do not fit."""
        feed = self.feeds.by_name.get(name)
        if feed is None or feed.serial != serial or feed.state is not FeedState.ASSIGNING:
            return
        feed.mismatch = mismatch
        feed.state = FeedState.MISMATCHED if mismatch else FeedState.READY
        grace_s = self.mismatch_grace_s if feed.world_size > 1 else 0.0
        feed.mismatch_deadline = now + grace_s if mismatch else None
        if mismatch:
            self._tell(set(feed.contributors.values()), msg.Mismatch(name, self.binding, mismatch))
        self.advance(now)

    def on_begin(self, source: MemberId, message: msg.Begin, now: float) -> None:
        """A source starts on a version: give it a slot, or say why not."""
        identity = message.identity
        feed = self.feeds.by_name.get(message.feed)
        credit = self.slots.valid(message.slot, message.generation, source) if message.slot >= 0 else None
        if message.binding != self.binding or feed is None or feed.serial != message.serial or feed.rank_of(source) != message.rank:
            self.dropped["begin"] += 1  # P1: an old binding, serial or contributor
            if credit is not None:
                # The source writes already: the slot stays its own until PART or RETURN, and what lands does not count.
                self.slots.drop(credit)
                self.out.append(act.Send(source, msg.Behind(identity, "the manifest changed as the version began")))
            return
        if message.slot >= 0 and credit is None:
            self.dropped["credit"] += 1
            return
        answer = self._refusal(identity)
        if answer is not None:
            self._return_credit(credit, source)
            self.out.append(act.Send(source, answer))
        elif identity in self.landings:
            self._join_landing(self.landings[identity], source, message, credit)
        elif credit is not None:
            self._start_landing(credit, identity, message.feed, message.world_size, {message.rank: source}, grant=False)
        else:
            waiting = self.waiting.get(identity)
            if waiting is None:
                deadline = now + message.credit_timeout_s
                waiting = self.waiting[identity] = Waiting(identity, message.feed, message.world_size, deadline)
                self._supersede()
            waiting.begun[message.rank] = source
        self.advance(now)

    def on_part(self, source: MemberId, message: msg.Part, now: float) -> None:
        """A source's part is written; when all are, the landing is verified (P3)."""
        landing = self.landings.get(message.identity)
        slot = self.slots.valid(message.slot, message.generation, source) if message.binding == self.binding else None
        if slot is None:
            self.dropped["part"] += 1
            return
        self.slots.release(slot, source)
        if landing is None or landing.slot != slot.index or landing.begun.get(message.rank) != source:
            self.dropped["part"] += 1
        else:
            landing.parted.add(message.rank)
            if landing.whole:
                landing.verifying = True
                self.out.append(act.VerifySlot(landing.slot, landing.generation, landing.identity, landing.feed))
        self.advance(now)

    def on_return(self, source: MemberId, message: msg.Return, now: float) -> None:
        """A source gives a slot back without a part that counts."""
        slot = self.slots.valid(message.slot, message.generation, source)
        if slot is None:
            self.dropped["return"] += 1
            return
        landing = self.landings.get(message.identity) if message.identity is not None else None
        if landing is not None and landing.slot == slot.index and not landing.verifying:
            self._fail_landing(landing, "cancelled", f"{source[:8]} returned its part", None)
        elif slot.state is SlotState.CREDIT:
            self.slots.drop(slot)
        self.slots.release(slot, source)
        self.advance(now)

    def on_source_gone(self, source: MemberId, cause: str, now: float) -> None:
        """The link or the member is lost: what it could still write is abandoned (P7), its landings fail."""
        for slot in self.slots.granted_to(source):
            landing = next((item for item in self.landings.values() if item.slot == slot.index), None)
            if landing is not None:
                self._fail_landing(landing, "peer_lost", cause, source)
            self.slots.abandon(slot)
            self.out += [act.RevokeGrants(slot.index), act.AbandonSlot(slot.index)]
        for landing in list(self.landings.values()):
            landing.followers.discard(source)
            lacks = [rank for rank, member in landing.begun.items() if member == source and rank not in landing.parted]
            if lacks:
                self._fail_landing(landing, "peer_lost", cause, source)
        for identity, waiting in list(self.waiting.items()):
            waiting.begun = {rank: member for rank, member in waiting.begun.items() if member != source}
            if not waiting.begun:
                del self.waiting[identity]
        self.feeds.forget(source)
        self.catchup.holder_failed(source, now)
        self.advance(now)

    # The driver.

    def on_verified(
        self, slot_index: int, generation: int, error: tuple[str, str, str | None] | None, holding: msg.Holding | None, now: float
    ) -> None:
        """The landing was checked: *error* is (code, message, tensor), *holding* what the slot now covers."""
        slot = self.slots[slot_index] if slot_index < len(self.slots.slots) else None
        landing = next((item for item in self.landings.values() if item.slot == slot_index and item.generation == generation), None)
        if slot is None or landing is None or slot.generation != generation:
            return
        if error is not None or holding is None:
            code, text, tensor = error if error is not None else ("internal", "verified without a holding", None)
            self._fail_landing(landing, code, text, None, tensor)
        else:
            self._install(landing, slot, holding)
        self.advance(now)

    def on_slot_fresh(self, binding: int, slot: int, generation: int, now: float) -> None:
        """An abandoned slot has new memory, whose header says *generation*."""
        if binding == self.binding:
            self.slots.fresh(self.slots[slot], generation)
            self.advance(now)

    # The coordinator.

    def on_publication(self, publication: Publication, rewind: bool, now: float) -> None:
        """A publication began: unfinished versions of lower ones fail (P3), lower frames are refused from now on (P1)."""
        if publication <= self.floor:
            return
        self.floor = publication
        if rewind:
            self.rewound = publication
        for landing in list(self.landings.values()):
            if landing.identity.publication < publication and not landing.feed.startswith("pull:"):
                self._fail_landing(landing, "stale", f"publication {publication} began", None)
        for identity in [item for item in self.waiting if item.publication < publication]:
            stale = msg.Failed(identity, "stale", f"publication {publication} began", None)
            self._tell(set(self.waiting.pop(identity).begun.values()), stale)
        for name in [item for item in self.feeds.by_name if not item.startswith("pull:") and item != str(publication)]:
            del self.feeds.by_name[name]
        self.advance(now)

    def on_overtaken(self, message: msg.Overtaken, now: float) -> None:
        """The coordinator declared a waiting version overtaken here (P2)."""
        self.waiting.pop(message.identity, None)
        self._settle(message.identity, msg.Ahead(message.identity, message.by))
        self.advance(now)

    def on_withdraw(self, message: msg.Withdraw, now: float) -> None:
        """P3: installed stands, anything else is dropped, and the answer is final."""
        identity = message.identity
        if self.slots.complete(identity) is None:
            landing = self.landings.get(identity)
            if landing is not None:
                self._fail_landing(landing, "withdrawn", "the version was withdrawn", None)
            self.waiting.pop(identity, None)
            self._settle(identity, msg.Failed(identity, "withdrawn", "the version was withdrawn", None))
            self.out.append(act.Send(COORDINATOR, msg.Dropped(identity)))
        else:
            self.out.append(act.Send(COORDINATOR, msg.Installed(identity, self.binding, self.shows.holdings[identity])))
        self.advance(now)

    # Time.

    def next_deadline(self) -> float | None:
        """When ``on_time`` has something to do next."""
        times = [item.deadline for item in self.waiting.values()]
        times += [feed.mismatch_deadline for feed in self.feeds.by_name.values() if feed.mismatch_deadline is not None]
        if self.catchup.pull is not None:
            times.append(self.catchup.pull.deadline)
        return min(times, default=None)

    def on_time(self, now: float) -> None:
        """P2: behind is decided here, once per version; a pull without an answer asks elsewhere."""
        for identity, waiting in list(self.waiting.items()):
            if waiting.deadline <= now:
                del self.waiting[identity]
                answer = msg.Behind(identity, self._why_unwritable())
                self._settle(identity, answer)
                self._tell({*waiting.begun.values(), COORDINATOR}, answer)
        for feed in self.feeds.by_name.values():
            if feed.mismatch_deadline is not None and feed.mismatch_deadline <= now:
                feed.mismatch_deadline = None
                self.out.append(act.BindingRefused(feed.mismatch))
        self.catchup.on_time(now)
        self.advance(now)

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
            self._start_landing(slot, identity, waiting.feed, waiting.world_size, waiting.begun, grant=True)
        self.catchup.advance(now)
        feed = self.feeds.sole_ready()
        slot = self.slots.writable()
        if feed is not None and feed.sole is not None and slot is not None and self.slots.credited() is None and not self.waiting:
            self._claim(slot, None)
            slot.granted.add(feed.sole)
            self.out.append(act.SendGrant(feed.sole, slot.index, slot.generation, None))

    # Inside.

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

    def _start_landing(
        self, slot: Slot, identity: Identity, feed: str, world_size: int, begun: dict[int, MemberId], *, grant: bool
    ) -> None:
        if grant:
            self._claim(slot, identity)
        else:
            slot.state, slot.identity = SlotState.LANDING, identity
        landing = Landing(identity, feed, world_size, slot.index, slot.generation, dict(begun))
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
        self._tell(landing.parties() - {gone}, answer)
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

    def _why_unwritable(self) -> str:
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
