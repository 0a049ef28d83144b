"""The trainer's machine, and a holder's: admits, delivers, settles and serves versions (P1-P3, P9, P10)."""

from __future__ import annotations

from wtransport.errors import DeadlineError, PeerLostError, TransportError
from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity, MemberId, Publication
from wtransport.session.outcomes import AheadOutcome, BehindOutcome, Delivered, Excluded, Lost, Outcome, OvertakenOutcome
from wtransport.session.source.delivery import DeliveryState, Put, PutState
from wtransport.session.source.delivery_book import DeliveryBook


class Source(DeliveryBook):
    """Sans-IO source of one member: the user's calls, the coordinator's words, the sinks' answers, the driver's reports, time."""

    # The user.

    def put(self, number: int, version: int, manifest: bytes, kind: str, now: float, *, rewind: bool = False) -> None:
        """Ask the coordinator to admit *version*."""
        self.puts[number] = Put(number, version, "", manifest, kind, self.world_size, rewind, deadline=now + self._stall_timeout_s)
        self.out.append(act.Send(COORDINATOR, msg.PutRequest(number, version, self.rank, None, rewind)))

    def hold(self, number: int, identity: Identity, feed: str, manifest: bytes, parts: int) -> None:
        """Offer an installed version, put in so many trainers' *parts*, to those who pull (a generator's slot)."""
        self.puts[number] = Put(number, identity.version, feed, manifest, "slot", parts, identity=identity, state=PutState.HELD)

    def release(self, number: int, now: float) -> None:
        """The version is not held any more: serving deliveries of it are cancelled."""
        put = self.puts.get(number)
        if put is not None and put.state is PutState.HELD:
            self._end_hold(put, now)

    def withdraw(self, number: int, now: float) -> None:
        """P3: the user cancelled the put. What has not started is dropped, the rest settles, the coordinator decides."""
        put = self.puts.get(number)
        if put is None or put.state in (PutState.HELD, PutState.ENDED) or put.withdrawing or put.stands:
            return
        put.withdrawing = True
        if put.identity is None:
            self._fail_put(put, "cancelled", "cancelled before the version was admitted", now)
            return
        put.deadline = now + self._stall_timeout_s
        self.out.append(act.Send(COORDINATOR, msg.WithdrawRequest(put.identity, self.rank)))
        for delivery in list(put.deliveries.values()):
            if delivery.state in (DeliveryState.UNREADY, DeliveryState.BEGUN, DeliveryState.WRITING):
                self._settle(delivery, BehindOutcome("withdrawn"), now)

    # The coordinator.

    def on_members(self, generators: dict[MemberId, str], now: float) -> None:
        """The generators that puts go to from now on; one that left settles as lost."""
        for member in self.targets.keys() - generators.keys():
            self.on_sink_gone(member, PeerLostError("the generator left or was lost", phase="put"), now)
        self.targets = dict(generators)
        self.troubles = {member: text for member, text in self.troubles.items() if member in generators}

    def on_admitted(self, message: msg.PutAdmitted, now: float) -> None:
        """The version has its identity: deliver to every generator at once."""
        put = self.puts.get(message.request)
        if put is None or put.state is not PutState.ADMITTING:
            self.out.append(act.Send(COORDINATOR, msg.WithdrawRequest(message.identity, self.rank)))
            return
        put.identity = message.identity
        put.feed = str(message.identity.publication)
        put.state = PutState.DELIVERING
        for other in list(self.puts.values()):
            if other.state is PutState.HELD and other.kind == "reference":
                self._end_hold(other, now)
        self.out.append(act.PutAdmittedAction(put.number, message.identity))
        self._open(put, self.targets, now)
        self._finish_if_done(put)

    def on_known(self, message: msg.PutKnown, now: float) -> None:
        """The version is committed already: prove that the bytes are the same, or learn that they are."""
        put = self.puts.get(message.request)
        if put is None or put.state is not PutState.ADMITTING:
            return
        if message.digest_needed:
            put.asked_digest = True
            self.out.append(act.ComputeDigest(put.number))
        else:
            put.state = PutState.ENDED
            put.identity = message.identity
            self.out += [act.PutAdmittedAction(put.number, message.identity), act.PutDone(put.number, {}, noop=True)]
            self._forget(put)

    def on_refused(self, message: msg.PutRefused, now: float) -> None:
        """The coordinator does not admit the version."""
        put = self.puts.get(message.request)
        if put is not None and put.state is PutState.ADMITTING:
            self._fail_put(put, message.code, message.message, now)

    def on_ranks(self, message: msg.PutRanks) -> None:
        """Ranks that have asked to put the version: who is missing is named at the deadline."""
        for put in self.puts.values():
            if put.identity == message.identity:
                put.ranks = message.ranks

    def on_overtaken(self, message: msg.Overtaken, now: float) -> None:
        """P2: declared by the coordinator, once per (version, sink)."""
        delivery = self._find(message.sink, message.identity)
        if delivery is not None:
            self._settle(delivery, OvertakenOutcome(message.by.version), now)

    def on_withdrawn(self, message: msg.Withdrawn, now: float) -> None:
        """P3: the version is dead, or stands because a sink had installed it."""
        for put in list(self.puts.values()):
            if put.identity != message.identity or put.state in (PutState.HELD, PutState.ENDED):
                continue
            if not message.stands:
                self._fail_put(put, "withdrawn", f"version {put.version} was withdrawn by {message.by}", now, by=message.by)
            else:
                put.withdrawing, put.stands = False, True
                for delivery in list(put.deliveries.values()):
                    if delivery.active and delivery.state is not DeliveryState.PARTED:
                        self._settle(delivery, BehindOutcome("withdrawn while it was under way"), now)
                self._finish_if_done(put)

    def on_straggler_kept(self, message: msg.StragglerKept, now: float) -> None:
        """The coordinator does not put the late sink out."""
        delivery = self._find(message.sink, message.identity)
        if delivery is not None and delivery.state is DeliveryState.JUDGED:
            self._settle(delivery, BehindOutcome(message.reason), now)

    def on_publication(self, publication: Publication, now: float) -> None:
        """P3: the end of a publication fails its unfinished puts on all ranks."""
        for put in list(self.puts.values()):
            if put.identity is not None and put.identity.publication < publication and put.kind != "slot":
                if put.state in (PutState.DELIVERING, PutState.FINISHING):
                    why = f"publication {publication} began meanwhile: a trainer, or the coordinator, started anew"
                    self._fail_put(put, "stale", why, now)

    def on_expelled(self, error: TransportError, now: float) -> None:
        """This member is none any more, for good: nothing that waits for a coordinator will be answered."""
        for put in [item for item in self.puts.values() if item.state is PutState.ADMITTING or item.withdrawing]:
            self._fail_put(put, error.code, error.message, now, error=error)

    def on_rejoined(self) -> None:
        """A coordinator (again): ask anew for what no coordinator has answered."""
        for put in self.puts.values():
            if put.state is PutState.ADMITTING:
                self.out.append(act.Send(COORDINATOR, msg.PutRequest(put.number, put.version, self.rank, put.digest, put.rewind)))

    def holdings(self) -> tuple[msg.Holding, ...]:
        """What is held here, for a declaration."""
        held = [put for put in self.puts.values() if put.state is PutState.HELD and put.kind in ("reference", "snapshot")]
        return tuple(
            msg.Holding(put.identity, put.kind, (self.rank,), self.world_size, put.digest or 0) for put in held if put.identity is not None
        )

    # Sinks.

    def manifest_changed(self, feed: str) -> None:
        """The source's tensors changed: every sink shares them out anew, and older plans count no more."""
        live = {put.feed for put in self.puts.values()} - {feed}
        for link in self.links.values():
            link.plans = {name: plan for name, plan in link.plans.items() if name in live}

    def on_sink_linked(self, sink: MemberId, now: float) -> None:
        """The data endpoint to *sink* is up."""
        self.link(sink).linked = True
        self.troubles.pop(sink, None)
        self._progress(sink, now)

    def on_bound(self, sink: MemberId, message: msg.Bound, now: float) -> None:
        """The sink's binding; grants of an older one are gone (P1)."""
        link = self.link(sink)
        if message.binding != link.binding:
            link.binding, link.credit = message.binding, None
            link.plans.clear()
            link.mismatch.clear()
            for delivery in self._active(sink):
                if delivery.state is not DeliveryState.UNREADY:
                    # Whatever the sink had to say of it would have come before this; what crosses it there is dropped (P1).
                    self._settle(delivery, BehindOutcome("bound anew"), now)
        self._progress(sink, now)

    def on_plan_ready(self, sink: MemberId, feed: str, binding: int, serial: int, digest: bytes, now: float) -> None:
        """The driver has planned what the sink wants."""
        link = self.link(sink)
        if binding != link.binding:
            self.dropped["want"] += 1
            return
        link.plans[feed] = (serial, digest)
        link.mismatch.pop(feed, None)
        for delivery in self._active(sink):
            if delivery.state is DeliveryState.BEGUN and self.puts[delivery.put].feed == feed:
                delivery.state = DeliveryState.UNREADY  # the sink drops a Begin that followed an older assignment
        self._progress(sink, now)

    def on_mismatch(self, sink: MemberId, message: msg.Mismatch, now: float) -> None:
        """The sink's binding does not fit; with several ranks the others may still change theirs."""
        link = self.link(sink)
        if message.binding != link.binding:
            self.dropped["mismatch"] += 1
            return
        link.plans.pop(message.feed, None)
        link.mismatch[message.feed] = (message.source_digest, message.message)
        self._progress(sink, now)

    def on_grant(self, sink: MemberId, message: msg.Grant, now: float) -> None:
        """A slot to write: credit, or the answer to a Begin."""
        link = self.link(sink)
        if message.binding != link.binding:
            self.dropped["grant"] += 1
            return
        if message.identity is None:
            link.credit = (message.slot, message.generation)
            self._progress(sink, now)
            return
        delivery = self._find(sink, message.identity)
        if delivery is None or delivery.state is not DeliveryState.BEGUN:
            self.out.append(act.Send(sink, msg.Return(message.slot, message.generation, message.identity)))
            return
        self._write(delivery, message.slot, message.generation, now)

    def on_recall(self, sink: MemberId, message: msg.Recall) -> None:
        """The sink wants unused credit back."""
        link = self.link(sink)
        if link.credit == (message.slot, message.generation):
            link.credit = None
            self.out.append(act.Send(sink, msg.Return(message.slot, message.generation, None)))

    def on_behind(self, sink: MemberId, message: msg.Behind, now: float) -> None:
        """P2: decided by the sink, once per version."""
        delivery = self._find(sink, message.identity)
        if delivery is not None and now - delivery.opened >= self._credit_timeout_s:
            self._late(delivery, BehindOutcome(message.reason), now)
        else:
            self._answer(sink, message.identity, BehindOutcome(message.reason), now)

    def on_installed(self, sink: MemberId, message: msg.Installed, now: float) -> None:
        """The sink verified and installed the version."""
        self._answer(sink, message.identity, Delivered(0), now)

    def on_ahead(self, sink: MemberId, message: msg.Ahead, now: float) -> None:
        """The sink holds something newer: a later version of this publication, or a higher one of an earlier (P1)."""
        same = message.held.publication >= message.identity.publication
        outcome = OvertakenOutcome(message.held.version) if same else AheadOutcome(message.held.version)
        self._answer(sink, message.identity, outcome, now)

    def on_failed(self, sink: MemberId, message: msg.Failed, now: float) -> None:
        """The version did not install at the sink."""
        if message.code == "withdrawn":
            # The sink was told before us, or its answer overtook the coordinator's: that one decides whether the version stands (P3).
            for put in self.puts.values():
                if put.identity == message.identity and put.state is PutState.DELIVERING and not (put.withdrawing or put.stands):
                    put.withdrawing, put.deadline = True, now + self._stall_timeout_s
            outcome: Outcome = BehindOutcome("withdrawn")
        else:
            outcome = Lost(self._error(message.code, message.message, sink, message.identity, tensor=message.tensor, phase="install"))
        self._answer(sink, message.identity, outcome, now)

    def on_pull(self, sink: MemberId, message: msg.Pull, now: float) -> None:
        """P9: deliver what is held to one sink; a delivery under way serves the pull too."""
        put = next((item for item in self.puts.values() if item.identity == message.identity and item.state is not PutState.ENDED), None)
        if put is None or put.withdrawing:
            self.out.append(act.Send(sink, msg.PullRefused(message.identity, message.binding, "unavailable", "not held here any more")))
            return
        running = put.deliveries.get(sink)
        if running is None or not running.active:
            self._open(put, [sink], now, serves=put.state in (PutState.FINISHING, PutState.HELD) or running is not None)

    def on_sink_gone(self, sink: MemberId, cause: TransportError, now: float) -> None:
        """Only this sink's deliveries end; their native work settles before the memory may be reused."""
        self.links.pop(sink, None)
        if sink in self.targets:
            self.troubles[sink] = cause.message
        for delivery in self._active(sink):
            delivery.slot = -1
            put = self.puts[delivery.put]
            fields = {"peer": self.targets.get(sink, sink[:8]), "version": put.version, "phase": delivery.state.value}
            lost = Lost(cause.copied().with_fields(**fields))
            self._settle(delivery, Excluded(delivery.verdict.reason) if delivery.verdict is not None else lost, now)

    # The driver.

    def on_written(self, number: int, now: float) -> None:
        """Every bucket of the delivery settled well, and the source still is what was read."""
        delivery = self._deliveries.get(number)
        if delivery is None:
            return
        delivery.writing = False
        put = self.puts[delivery.put]
        if delivery.state is DeliveryState.WRITING and put.identity is not None:
            delivery.state = DeliveryState.PARTED
            delivery.deadline = now + self._stall_timeout_s
            self.out.append(act.SendPart(number, put.number, delivery.sink, put.identity, delivery.slot, delivery.generation))
            delivery.slot = -1
        self._stopped(delivery)

    def on_write_failed(self, number: int, error: TransportError, now: float) -> None:
        """The delivery's works have all settled, not all of them well."""
        delivery = self._deliveries.get(number)
        if delivery is None:
            return
        delivery.writing = False
        put = self.puts[delivery.put]
        if error.code == "source_changed":
            if put.state is PutState.HELD:
                self._end_hold(put, now)
            else:
                self._fail_put(put, error.code, error.message, now, error=error)
        if delivery.active:
            self._settle(delivery, Lost(error.with_fields(peer=self.targets.get(delivery.sink), version=put.version, phase="write")), now)
        self._stopped(delivery)

    def on_digest(self, number: int, digest: int | None, error: TransportError | None, now: float) -> None:
        """The put's digest (None with ``verify="off"``): proves a known version, or ends a put that is delivered."""
        put = self.puts.get(number)
        if put is None:
            return
        if error is not None:
            self._fail_put(put, error.code, error.message, now, error=error)
        elif put.state is PutState.ADMITTING:
            put.asked_digest = False
            put.digest = digest or 0
            put.deadline = now + self._stall_timeout_s
            self.out.append(act.Send(COORDINATOR, msg.PutRequest(number, put.version, self.rank, put.digest, put.rewind)))
        elif put.state is PutState.FINISHING and put.identity is not None:
            put.digest = digest
            put.state = PutState.HELD
            if digest is None and put.kind != "snapshot":
                put.kind = "none"
            holding = msg.Holding(put.identity, put.kind, (self.rank,), self.world_size, digest or 0) if put.kind != "none" else None
            self.out.append(act.Send(COORDINATOR, msg.PutSettled(put.identity, self.rank, holding)))
            self.out.append(act.PutDone(number, dict(put.outcomes), noop=False))
            for other in list(self.puts.values()):
                if other is not put and other.state is PutState.HELD and other.kind != "slot":
                    self._end_hold(other, now)
            if put.kind == "none":
                self._end_hold(put, now)

    # Time.

    def next_deadline(self) -> float | None:
        """When ``on_time`` has something to do next."""
        times = [item.deadline for item in self._waiting()]
        times += [put.deadline for put in self.puts.values() if self._awaits_coordinator(put)]
        return min(times, default=None)

    def on_time(self, now: float) -> None:
        """P10: every wait ends."""
        for delivery in [item for item in self._waiting() if item.deadline <= now]:
            put = self.puts[delivery.put]
            link = self.link(delivery.sink)
            if delivery.state is DeliveryState.UNREADY:
                mismatch = self._misfit(link, put)
                patient = delivery.opened + max(self._stall_timeout_s, self._credit_timeout_s)
                if mismatch is not None:
                    self._exclude(delivery, mismatch, now)
                elif link.linked and link.binding and now < patient:
                    # Both ends plan a manifest that is new: that is work, not a slot that is lacking.
                    delivery.deadline = patient
                elif link.linked and not link.binding:
                    self._late(delivery, BehindOutcome("the generator has not bound yet"), now)
                else:
                    trouble = f": {self.troubles[delivery.sink]}" if delivery.sink in self.troubles else ""
                    why = "no plan within the stall time" if link.linked else f"no data endpoint within the credit time{trouble}"
                    self._late(delivery, BehindOutcome(why), now)
            elif delivery.verdict is not None:
                self._settle(delivery, delivery.verdict, now)
            elif delivery.state in (DeliveryState.BEGUN, DeliveryState.PARTED):
                missing = sorted(set(range(self.world_size)) - set(put.ranks)) if put.ranks else []
                text = f"trainer ranks {missing} did not put version {put.version}" if missing else "the generator did not answer"
                fields = {"peer": self.targets.get(delivery.sink), "version": put.version, "phase": delivery.state.value}
                self._settle(delivery, Lost(DeadlineError(text, **fields)), now)
        for put in [item for item in self.puts.values() if self._awaits_coordinator(item) and item.deadline <= now]:
            if put.state is PutState.ADMITTING:
                self._fail_put(put, "deadline", "the coordinator did not admit the version in time", now)
            else:
                self._fail_put(put, "withdrawn", "withdrawn; the coordinator did not answer", now)

    @staticmethod
    def _awaits_coordinator(put: Put) -> bool:
        """Whether the put's deadline counts: neither while its digest is computed, nor once it has ended or is held."""
        if put.state is PutState.ADMITTING:
            return not put.asked_digest
        return put.withdrawing and put.state in (PutState.DELIVERING, PutState.FINISHING)
