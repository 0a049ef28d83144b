"""The book of a source's deliveries: opening, advancing and settling them, and ending the puts they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from wtransport.errors import TransportError, error_classes
from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity, MemberId
from wtransport.session.outcomes import BehindOutcome, Excluded, Outcome
from wtransport.session.source.delivery import Delivery, DeliveryState, Put, PutState, SinkLink

Straggler = Literal["behind", "wait", "exclude", "raise"]


class DeliveryBook:
    """What ``Source`` keeps, and how one delivery moves on.

    Args:
        rank: This trainer's rank (0 for a generator that serves what it holds).
        world_size: Trainer ranks; 1 for a generator.
        credit_timeout_s: How long a sink may wait for a slot, and how long one that is not linked yet is waited for.
        straggler: What becomes of a sink that is late by then: ``exclude`` asks the coordinator to put it out; ``wait`` and ``raise`` only
            wait for one that has not bound, too.
        stall_timeout_s: How long an answer may take without any sign of progress.
    """

    def __init__(
        self, *, rank: int, world_size: int, credit_timeout_s: float, stall_timeout_s: float, straggler: Straggler = "behind"
    ) -> None:
        self.out: list[act.Action] = []
        self.rank = rank
        self.world_size = world_size
        self.links: dict[MemberId, SinkLink] = {}
        self.targets: dict[MemberId, str] = {}
        self.troubles: dict[MemberId, str] = {}
        self.puts: dict[int, Put] = {}
        self.dropped: Counter[str] = Counter()
        self._deliveries: dict[int, Delivery] = {}
        self._next = 0
        self._credit_timeout_s = credit_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._straggler = straggler

    def link(self, sink: MemberId) -> SinkLink:
        """The link's state, made on first use."""
        return self.links.setdefault(sink, SinkLink(sink))

    def _open(self, put: Put, sinks: Iterable[MemberId], now: float, *, serves: bool = False) -> None:
        opened: list[Delivery] = []
        for sink in sinks:
            self._next += 1
            delivery = Delivery(self._next, put.number, sink, now, now + self._credit_timeout_s, serves)
            put.deliveries[sink] = self._deliveries[delivery.number] = delivery
            opened.append(delivery)
        # All are there before the first moves: one that settles at once must not make the put look done.
        for delivery in opened:
            self._step(delivery, now)

    def _progress(self, sink: MemberId, now: float) -> None:
        for delivery in self._active(sink):
            self._step(delivery, now)

    def _step(self, delivery: Delivery, now: float) -> None:
        put = self.puts[delivery.put]
        link = self.link(delivery.sink)
        if delivery.state is not DeliveryState.UNREADY or put.identity is None:
            return
        if link.linked and link.binding == 0 and not delivery.serves and self._straggler == "behind":
            self._settle(delivery, BehindOutcome("the generator has not bound yet"), now)
            return
        mismatch = self._misfit(link, put)
        if mismatch is not None and self.world_size == 1:
            self._exclude(delivery, mismatch, now)
            return
        plan = link.plans.get(put.feed)
        if not link.linked or plan is None or plan[1] != put.manifest:
            return
        slot, generation = link.credit or (-1, 0)
        link.credit = None
        wait_s = self._credit_timeout_s
        rank, size = (0, 1) if put.kind == "slot" else (self.rank, self.world_size)
        begin = msg.Begin(put.identity, put.feed, rank, size, put.parts, link.binding, plan[0], slot, generation, wait_s)
        self.out.append(act.Send(delivery.sink, begin))
        if slot >= 0:
            self._write(delivery, slot, generation, now)
        else:
            delivery.state = DeliveryState.BEGUN
            delivery.deadline = now + wait_s + self._stall_timeout_s

    def _misfit(self, link: SinkLink, put: Put) -> str | None:
        """Why the sink's binding does not fit what *put* holds; None if it does, or that is not known yet."""
        digest, why = link.mismatch.get(put.feed, (b"", ""))
        return why if digest == put.manifest and why else None

    def _exclude(self, delivery: Delivery, why: str, now: float) -> None:
        put, link = self.puts[delivery.put], self.link(delivery.sink)
        if put.identity is not None:
            refused = msg.PullRefused(put.identity, link.binding, "manifest_mismatch", why)
            misfit = msg.Misfit(put.identity, put.feed, link.binding)
            self.out.append(act.Send(delivery.sink, refused if delivery.serves else misfit))
        self._settle(delivery, Excluded(why), now)

    def _write(self, delivery: Delivery, slot: int, generation: int, now: float) -> None:
        delivery.state = DeliveryState.WRITING
        delivery.slot, delivery.generation, delivery.writing = slot, generation, True
        self.out.append(act.StartWrite(delivery.number, delivery.put, delivery.sink, slot, generation))

    def _late(self, delivery: Delivery, outcome: BehindOutcome, now: float) -> None:
        """A sink did not take the version in time; by the policy it is behind, or the coordinator is asked to put it out."""
        put = self.puts[delivery.put]
        if self._straggler == "exclude" and not delivery.serves and put.identity is not None and delivery.state is not DeliveryState.JUDGED:
            delivery.state, delivery.verdict = DeliveryState.JUDGED, outcome
            delivery.deadline = now + self._stall_timeout_s
            self.out.append(act.Send(COORDINATOR, msg.Straggler(put.identity, delivery.sink, outcome.reason)))
        else:
            self._settle(delivery, outcome, now)

    def _answer(self, sink: MemberId, identity: Identity, outcome: Outcome, now: float) -> None:
        delivery = self._find(sink, identity)
        if delivery is None:
            self.dropped["answer"] += 1
        else:
            self._settle(delivery, outcome, now)

    def _settle(self, delivery: Delivery, outcome: Outcome, now: float) -> None:
        if not delivery.active:
            return
        delivery.state = DeliveryState.SETTLED
        delivery.outcome = outcome
        put = self.puts[delivery.put]
        if not delivery.serves:
            put.outcomes[delivery.sink] = outcome
        if delivery.writing:
            self.out.append(act.CancelWrite(delivery.number))
        else:
            self._stopped(delivery)
        self._finish_if_done(put)

    def _stopped(self, delivery: Delivery) -> None:
        """The delivery's native work has settled: give back a slot that will get no PART (P2), and forget it once settled."""
        if delivery.number not in self._deliveries:
            return
        if delivery.slot >= 0 and not delivery.active:
            put = self.puts[delivery.put]
            self.out.append(act.Send(delivery.sink, msg.Return(delivery.slot, delivery.generation, put.identity)))
            delivery.slot = -1
        if not delivery.active and not delivery.writing:
            self._deliveries.pop(delivery.number, None)
            put = self.puts[delivery.put]
            if put.deliveries.get(delivery.sink) is delivery and delivery.serves:
                del put.deliveries[delivery.sink]
            self._finish_if_done(put)
            self._forget(put)

    def _finish_if_done(self, put: Put) -> None:
        if (
            put.state is PutState.DELIVERING
            and not put.withdrawing
            and not any(item.active or item.writing for item in put.deliveries.values() if not item.serves)
        ):
            put.state = PutState.FINISHING
            self.out.append(act.ComputeDigest(put.number))

    def _fail_put(self, put: Put, code: str, text: str, now: float, *, by: str | None = None, error: TransportError | None = None) -> None:
        if put.state in (PutState.HELD, PutState.ENDED):
            return
        put.state = PutState.ENDED
        if put.identity is not None and code != "withdrawn":
            self.out.append(act.Send(COORDINATOR, msg.PutFailed(put.identity, self.rank, text)))
        self.out.append(act.PutError(put.number, code, text, by, error))
        for delivery in list(put.deliveries.values()):
            self._settle(delivery, BehindOutcome(text), now)
        self._forget(put)

    def _end_hold(self, put: Put, now: float) -> None:
        put.state = PutState.ENDED
        if put.identity is not None and put.kind != "none":
            self.out.append(act.Send(COORDINATOR, msg.HoldingEnded(put.identity)))
        for delivery in list(put.deliveries.values()):
            if delivery.active and put.identity is not None:
                binding = self.link(delivery.sink).binding
                self.out.append(act.Send(delivery.sink, msg.PullRefused(put.identity, binding, "unavailable", "not held here any more")))
            self._settle(delivery, BehindOutcome("not held any more"), now)
        self._forget(put)

    def _forget(self, put: Put) -> None:
        busy = any(item.active or item.writing for item in put.deliveries.values())
        if put.state is PutState.ENDED and not busy and self.puts.pop(put.number, None) is not None:
            self.out.append(act.ReleasePut(put.number))

    def _find(self, sink: MemberId, identity: Identity) -> Delivery | None:
        for delivery in self._active(sink):
            if self.puts[delivery.put].identity == identity:
                return delivery
        return None

    def _active(self, sink: MemberId) -> list[Delivery]:
        return [item for item in self._deliveries.values() if item.sink == sink and item.active]

    def _waiting(self) -> Iterator[Delivery]:
        return (item for item in self._deliveries.values() if item.active and item.state is not DeliveryState.WRITING)

    def _error(self, code: str, text: str, sink: MemberId, identity: Identity, **fields: object) -> TransportError:
        cls = error_classes().get(code, TransportError)
        return cls(text).with_fields(peer=self.targets.get(sink, sink[:8]), version=identity.version, **fields)
