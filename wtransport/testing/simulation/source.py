"""The simulated driver of a source: carries out what the machine asks, with writes that last until the test completes them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from wtransport.errors import PeerLostError, StaleEpochError, TransportError
from wtransport.session import actions as act
from wtransport.session import dispatch
from wtransport.session import messages as msg
from wtransport.session.identity import COORDINATOR, Identity, MemberId
from wtransport.session.outcomes import Delivered
from wtransport.session.source.machine import Source
from wtransport.testing.simulation.memory import WHOLE, Memory, Tag, Violation, Write
from wtransport.testing.simulation.network import Gone, Link, Linked

if TYPE_CHECKING:
    from wtransport.testing.simulation.member import SimMember

#: Per put: ("done", outcomes by member) or ("error", code).
Settled = tuple[str, object]


class SimSource:
    """One member as a source."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        sim, profile = member.sim, member.profile
        trainer = profile.role == "trainer"
        self.machine = Source(
            rank=profile.rank if trainer else 0,
            world_size=profile.world_size if trainer else 1,
            credit_timeout_s=sim.credit_timeout_s,
            stall_timeout_s=sim.stall_timeout_s,
        )
        self.links: dict[MemberId, Link] = {}
        self.linked: set[MemberId] = set()
        self.settled: dict[int, Settled] = {}
        self.versions: dict[int, int] = {}
        self.writes: dict[int, Write] = {}
        self.digests: list[int] = []
        self.feed = f"pull:{member.membership.member}"
        self._manifests: dict[str, bytes] = {}
        self._plans: dict[tuple[MemberId, str], int] = {}
        self._remotes: dict[tuple[MemberId, int], tuple[Memory, int]] = {}
        self._held: dict[int, tuple[int, int, Memory]] = {}
        self._numbers = itertools.count(1)

    def put(self, version: int, *, kind: str = "snapshot", rewind: bool = False) -> int:
        """The user puts *version*; returns the put's number."""
        number = next(self._numbers)
        self.versions[number] = version
        self.machine.put(number, version, b"m", kind, self._member.sim.now, rewind=rewind)
        self._member.pump()
        return number

    def hold(self, identity: Identity, parts: int, binding: int, slot: int, memory: Memory) -> int:
        """Offer an installed slot."""
        number = next(self._numbers)
        self._manifests[self.feed] = b"m"
        self._held[number] = (binding, slot, memory)
        self.machine.hold(number, identity, self.feed, b"m", parts)
        return number

    def unhold(self, number: int) -> None:
        """The slot is about to be written."""
        self.machine.release(number, self._member.sim.now)
        self._member.pump()

    def on_members(self, members: dict[MemberId, msg.MemberRecord]) -> None:
        """The roster changed."""
        if self._member.profile.role == "trainer":
            self.machine.on_members(self._member.membership.generators(), self._member.sim.now)
        for sink in [item for item in self.links if item not in members]:
            self.links[sink].cut("left the roster")
            self.gone(sink)

    def gone(self, sink: MemberId) -> None:
        """The link to *sink* ended, here."""
        if self.links.pop(sink, None) is None:
            return
        self.linked.discard(sink)
        self._plans = {key: plan for key, plan in self._plans.items() if key[0] != sink}
        self._remotes = {key: remote for key, remote in self._remotes.items() if key[0] != sink}
        self.machine.on_sink_gone(sink, PeerLostError("the link ended"), self._member.sim.now)

    def on_message(self, sink: MemberId, link: Link, message: object) -> None:
        """A sink's message; the first is its data offer."""
        if self.links.get(sink) is not link:
            return
        machine, now = self.machine, self._member.sim.now
        match message:
            case Gone():
                self.gone(sink)
            case msg.DataOffer():
                link.to_a.send(Linked())
                self.linked.add(sink)
                for feed in [item for item in self._manifests if item != self.feed]:
                    self._declare(sink, feed)
                machine.on_sink_linked(sink, now)
            case msg.Bound():
                self._remotes = {key: remote for key, remote in self._remotes.items() if key[0] != sink}
                machine.on_bound(sink, message, now)
            case msg.Want():
                if self._manifests.get(message.feed) == message.source_digest:
                    self._plans[sink, message.feed] = message.binding
                    machine.on_plan_ready(sink, message.feed, message.binding, message.serial, message.source_digest, now)
            case msg.Grant():
                assert isinstance(message.remote, Memory)
                self._remotes[sink, message.slot] = (message.remote, message.generation)
                dispatch.sink_to_source(machine, sink, message, now)
            case _:
                if isinstance(message, msg.Pull) and self.feed in self._manifests:
                    self._declare(sink, self.feed)
                dispatch.sink_to_source(machine, sink, message, now)
        self._member.pump()

    def on_coordinator(self, message: object) -> None:
        """The coordinator's word."""
        dispatch.coordinator_to_source(self.machine, message, self._member.sim.now)

    def carry_out(self, action: object) -> None:
        """Carry one action out."""
        match action:
            case act.Send(to, message):
                if to == COORDINATOR:
                    self._member.tell(message)
                elif to in self.links:
                    self.links[to].to_a.send(message)
            case act.StartWrite():
                self._start_write(action)
            case act.CancelWrite(delivery):
                if delivery in self.writes:
                    self.writes[delivery].cancelled = True
            case act.SendPart():
                self._send_part(action)
            case act.ComputeDigest(put):
                self.digests.append(put)
            case act.PutAdmittedAction(_, admitted):
                self._admitted(admitted)
            case act.PutDone(put, outcomes, _):
                identity = self.machine.puts[put].identity if put in self.machine.puts else None
                for sink, outcome in outcomes.items():
                    if isinstance(outcome, Delivered) and (sink, identity) not in self._member.sim.installed:
                        raise Violation(f"put {put} says delivered at {sink}, which never installed {identity}")
                self._settle(put, ("done", outcomes))
            case act.PutError(put, code, _):
                self._settle(put, ("error", code))

    def digest(self) -> None:
        """The next digest is computed."""
        put = self.digests.pop(0)
        version = self.versions.get(put, 0)
        self.machine.on_digest(put, 1000 + version, None, self._member.sim.now)
        self._member.pump()

    def complete(self, delivery: int, *, fail: bool = False) -> None:
        """A delivery's writes settle: whole, or (cancelled, failed, never begun) not."""
        write = self.writes.pop(delivery)
        now = self._member.sim.now
        whole = write.memory is not None and not write.cancelled and not fail
        if write.memory is not None:
            self._member.sim.store(write.memory, write.rank, Tag(write.identity, write.generation, whole))
        if write.origin is not None and not write.origin.holds(write.identity, self._member.sim.world_size):
            raise Violation(f"{self._member.profile.name} served {write.identity} from a slot that was written meanwhile")
        if write.pinned is not None and self._member.sink is not None:
            self._member.sink.machine.lease_ended(write.pinned[0], write.pinned[1], now)
        if whole:
            self.machine.on_written(delivery, now)
        else:
            error: TransportError = StaleEpochError("cancelled") if write.memory is None or write.cancelled else PeerLostError("failed")
            self.machine.on_write_failed(delivery, error, now)
        self._member.pump()

    def _start_write(self, action: act.StartWrite) -> None:
        put = self.machine.puts[action.put]
        assert put.identity is not None
        memory, generation = self._remotes.get((action.sink, action.slot), (None, -1))
        if action.sink not in self.linked or (action.sink, put.feed) not in self._plans or generation != action.generation:
            memory = None
        rank = WHOLE if put.kind == "slot" else self.machine.rank
        write = Write(action.delivery, put.identity, rank, action.sink, memory, action.slot, action.generation)
        self.writes[action.delivery] = write
        held = self._held.get(action.put)
        if held is not None and self._member.sink is not None and held[0] == self._member.sink.machine.binding:
            self._member.sink.machine.pin(held[1])
            write.pinned = held[:2]
            write.origin = held[2]
        if memory is not None:
            self._member.sim.store(memory, rank, Tag(put.identity, action.generation, False))

    def _send_part(self, action: act.SendPart) -> None:
        put = self.machine.puts[action.put]
        rank = 0 if put.kind == "slot" else self.machine.rank
        link, binding = self.links.get(action.sink), self._plans.get((action.sink, put.feed), -1)
        if link is not None:
            link.to_a.send(msg.Part(action.identity, put.feed, rank, binding, action.slot, action.generation, b"", b""))

    def _admitted(self, identity: Identity) -> None:
        feed = str(identity.publication)
        if feed not in self._manifests:
            self._manifests = {key: value for key, value in self._manifests.items() if key == self.feed} | {feed: b"m"}
            self.machine.manifest_changed(feed)
            for sink in self.linked:
                self._declare(sink, feed)

    def _declare(self, sink: MemberId, feed: str) -> None:
        rank, size = (0, 1) if feed == self.feed else (self.machine.rank, self.machine.world_size)
        self.links[sink].to_a.send(msg.SourceManifest(feed, rank, size, self._manifests[feed], b""))

    def _settle(self, put: int, result: Settled) -> None:
        if put in self.settled:
            raise Violation(f"put {put} settled as {self.settled[put]}, then as {result}")
        self.settled[put] = result
