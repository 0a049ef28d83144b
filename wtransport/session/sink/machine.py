"""The generator's machine: assembles versions in slots, decides behind, verifies, shows, and catches up (P1-P4, P7, P9)."""

from __future__ import annotations

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, MemberId, Publication
from wtransport.session.sink.feeds import FeedState
from wtransport.session.sink.landing import Waiting
from wtransport.session.sink.landing_book import LandingBook
from wtransport.session.sink.slots import SlotState, SlotTable


class Sink(LandingBook):
    """Sans-IO sink of one member and its current binding."""

    # The user.

    def bind(self, num_slots: int, now: float) -> int:
        """A new binding with *num_slots* populated slots; landings of the old one are dropped and its frames refused (P1)."""
        for landing in list(self.landings.values()):
            self._tell(landing.parties(), msg.Behind(landing.identity, "bound anew"))
        for waiting in self.waiting.values():
            self._tell(waiting.parties(), msg.Behind(waiting.identity, "bound anew"))
        self.landings.clear()
        self.waiting.clear()
        self.settled.clear()
        for slot in self.slots.slots:
            self.out.append(act.RevokeGrants(slot.index))
        self.binding += 1
        highest = max((slot.generation for slot in self.slots.slots), default=0)
        self.slots = SlotTable(num_slots)
        for slot in self.slots.slots:
            slot.generation = highest  # a verification or a Return of the old binding must not fit a landing of the new one
        self.shows.rebound()
        self.catchup.rebound()
        self.feeds.restart(rebound=self.binding > 1)
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
        feed.mismatch_deadline = now + grace_s if mismatch and not feed.provisional else None
        if mismatch:
            for rank, member in sorted(feed.contributors.items()):
                self.out.append(act.Send(member, msg.Mismatch(name, self.binding, feed.digests[rank], mismatch)))
        self.advance(now)

    def on_misfit(self, message: msg.Misfit) -> None:
        """A version was put that the binding does not fit: the user is told, however old the manifests are."""
        feed = self.feeds.by_name.get(message.feed)
        if feed is not None and feed.mismatch and message.binding == self.binding:
            self.out.append(act.BindingRefused(feed.mismatch))

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
        for landing in [item for item in self.landings.values() if item.identity < identity and item.lacks(message.feed, message.rank)]:
            # P3: a rank's versions rise, so it will never put that one.
            self._fail_landing(landing, "deadline", f"rank {message.rank} did not put version {landing.identity.version}", None)
        answer = self._refusal(identity)
        if answer is not None:
            self._return_credit(credit, source)
            self.out.append(act.Send(source, answer))
        elif identity in self.landings:
            self.landings[identity].deadline = now + self.stall_timeout_s
            self._join_landing(self.landings[identity], source, message, credit)
        else:
            deadline = now + message.credit_timeout_s
            fresh = Waiting(identity, message.feed, message.world_size, message.parts, deadline)
            before = self.waiting.get(identity)
            if credit is not None:
                fresh.join(message.feed, message.rank, source)
                if before is not None:
                    del self.waiting[identity]
                    fresh.followers |= before.parties() - {source}
                self._start_landing(credit, fresh, now, grant=False)
            elif before is not None:
                before.join(message.feed, message.rank, source)
            else:
                fresh.join(message.feed, message.rank, source)
                self.waiting[identity] = fresh
                self._supersede()
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
                self.out.append(act.VerifySlot(landing.slot, landing.generation, landing.identity, landing.feed, landing.parts))
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
            if not waiting.leave(source):
                self._tell(waiting.followers, msg.Behind(identity, cause))
                del self.waiting[identity]
        self.feeds.forget(source)
        self.catchup.holder_failed(source, cause, now)
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
            self._tell(self.waiting.pop(identity).parties(), stale)
        kept = {str(publication)}
        if self.catchup.available is not None:
            kept.add(str(self.catchup.available.identity.publication))  # its part holders may still be pulled from
        for name in [item for item in self.feeds.by_name if not item.startswith("pull:") and item not in kept]:
            del self.feeds.by_name[name]
        self.advance(now)

    def on_overtaken(self, message: msg.Overtaken, now: float) -> None:
        """The coordinator declared a waiting version overtaken here (P2)."""
        waiting = self.waiting.pop(message.identity, None)
        answer = msg.Ahead(message.identity, message.by)
        self._tell(waiting.parties() if waiting is not None else set(), answer)
        self._settle(message.identity, answer)
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
        times += [item.deadline for item in self._orphaned()]
        if self.catchup.pull is not None:
            times.append(self.catchup.pull.deadline)
        return min(times, default=None)

    def on_time(self, now: float) -> None:
        """P2: behind is decided here, once per version; a pull without an answer asks elsewhere."""
        for identity, waiting in list(self.waiting.items()):
            if waiting.deadline <= now:
                del self.waiting[identity]
                answer = msg.Behind(identity, self.why_unwritable())
                self._settle(identity, answer)
                self._tell({*waiting.parties(), COORDINATOR}, answer)
                self.catchup.short_of_slots(identity)
        for landing in [item for item in self._orphaned() if item.deadline <= now]:
            self._fail_landing(landing, "stale", "not every rank began it here; it is pulled instead", None)
        for feed in self.feeds.by_name.values():
            if feed.mismatch_deadline is not None and feed.mismatch_deadline <= now:
                feed.mismatch_deadline = None
                self.out.append(act.BindingRefused(feed.mismatch))
        self.catchup.on_time(now)
        self.advance(now)
