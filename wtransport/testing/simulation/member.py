"""One simulated member: membership, a source, and (a generator) a sink, over one channel to the coordinator."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from wtransport.session import messages as msg
from wtransport.session.identity import Identity, MemberId
from wtransport.session.membership import Membership, Profile
from wtransport.testing.simulation.memory import Violation
from wtransport.testing.simulation.network import Gone, Link
from wtransport.testing.simulation.sink import SimSink
from wtransport.testing.simulation.source import SimSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.session.sink.machine import Sink
    from wtransport.session.source.machine import Source
    from wtransport.testing.simulation.simulator import Simulator

_RETRY_S = 0.2


class SimMember:
    """A member that joins, keeps coming back, and carries its machines' actions out.

    Attributes:
        alive: False once killed: nothing runs here, though native writes under way may still store.
        over: It was told for good that it is not a member.
        taker: Whether the user takes each version as it is shown (and lets go at once).
    """

    def __init__(self, sim: Simulator, profile: Profile, *, taker: bool, takeover: bool = False) -> None:
        self.sim = sim
        self.profile = profile
        numbers = itertools.count(sim.draw())
        self.membership = Membership(profile, lambda: MemberId(f"{profile.name}#{next(numbers)}"), takeover=takeover)
        self.alive = True
        self.over = False
        self.taker = taker
        self.channel: Link | None = None
        self.events: list[msg.EventNotice] = []
        self.source = SimSource(self)
        self.sink = SimSink(self) if profile.role == "generator" else None
        self._running = False
        self._refusal: msg.Refused | None = None

    @property
    def id(self) -> MemberId:
        """The present incarnation."""
        return self.membership.member

    def connect(self) -> None:
        """Dial the coordinator and say Join; without one there is nobody to dial."""
        if not self.alive or self.over or self.channel is not None or self.sim.coordinator is None:
            return
        self.membership.admitted = False
        self._refusal = None
        join = self.membership.join((), *self._declared())
        self.channel = self.sim.open_channel(self, join)

    def _declared(self) -> tuple[tuple[msg.Holding, ...], int, int, Identity | None]:
        if self.sink is None:
            return self.source.machine.holdings(), 0, 0, None
        machine = self.sink.machine
        return self.sink.holdings(), machine.binding, machine.shows.seq, machine.shows.shown

    def tell(self, message: object) -> None:
        """Send to the coordinator; lost while not admitted."""
        if self.channel is not None and self.membership.admitted:
            self.channel.to_b.send(message)

    def on_message(self, channel: Link, message: object) -> None:
        """The coordinator's message."""
        if self.channel is not channel or not self.alive:
            return
        match message:
            case Gone():
                self.channel = None
                self.membership.admitted = False
                if self._refusal is not None and not self._refusal.redraw:
                    self.over = True
                self.sim.later(_RETRY_S, self.connect)
            case msg.Refused():
                self._refused(message)
            case msg.Welcome():
                self._welcome(message, channel)
            case msg.NewTerm():
                self.membership.admitted = True
                if self.membership.on_term(message.term):
                    self.tell(msg.Redeclare(self.membership.declaration(*self._declared())))
                    self.source.machine.on_rejoined()
            case msg.View():
                self.membership.on_view(message)
                self.source.on_members(self.membership.members)
                if self.sink is not None:
                    self.sink.on_members(self.membership.members)
            case msg.EventNotice():
                self.events.append(message)
            case msg.PublicationBegun() if not self.membership.on_publication(message):
                pass
            case _:
                self.source.on_coordinator(message)
                if self.sink is not None:
                    self.sink.on_coordinator(message)
        self.pump()

    def from_sink(self, sink: MemberId, link: Link, message: object) -> None:
        """A sink's message to the source here."""
        if self.alive:
            self.source.on_message(sink, link, message)

    def pump(self) -> None:
        """Carry out what the machines left, in order; what that adds follows behind."""
        if self._running or not self.alive:
            return
        self._running = True
        try:
            busy = True
            while busy:
                busy = False
                for machine, carry in self._machines():
                    actions, machine.out[:] = list(machine.out), []
                    busy = busy or bool(actions)
                    for action in actions:
                        carry(action)
        finally:
            self._running = False
        if self.taker and self.sink is not None and self.sink.shown is not None and self.sink.taken < self.sink.shown.seq:
            self.sink.lease()
            self.sink.release()

    def next_deadline(self) -> float | None:
        """When time has something to do here."""
        if not self.alive:
            return None
        times = [machine.next_deadline() for machine, _ in self._machines()]
        return min((item for item in times if item is not None), default=None)

    def on_time(self, now: float) -> None:
        """Time has passed."""
        for machine, _ in self._machines():
            deadline = machine.next_deadline()
            if deadline is not None and deadline <= now:
                machine.on_time(now)
                after = machine.next_deadline()
                if after is not None and after <= now:
                    raise Violation(f"{self.profile.name}: a deadline at {after} stays due at {now}: its timer would spin")
        self.pump()

    def redraw(self) -> None:
        """P5: every endpoint and grant of the old incarnation goes before a new one is drawn."""
        for peer, link in list(self.source.links.items()):
            link.cut("a new incarnation")
            self.source.gone(peer)
        if self.sink is not None:
            for peer in list(self.sink.links):
                self.sink.drop(peer)
            self.sink.forget_wanted()
        self.membership.redraw()

    def _machines(self) -> list[tuple[Source | Sink, Callable[[object], None]]]:
        found: list[tuple[Source | Sink, Callable[[object], None]]] = [(self.source.machine, self.source.carry_out)]
        if self.sink is not None:
            found.append((self.sink.machine, self.sink.carry_out))
        return found

    def _refused(self, message: msg.Refused) -> None:
        self._refusal = message
        if message.redraw:
            self.redraw()
        elif self.membership.admitted:
            self.redraw()
            self.over = True

    def _welcome(self, message: msg.Welcome, channel: Link) -> None:
        if not self.membership.on_term(message.term):
            channel.to_b.send(msg.TermRefused(self.membership.term))
            return
        self.membership.on_admitted()
        self.source.machine.on_rejoined()
        if self.sink is not None and self.sink.machine.binding:
            self.tell(msg.Bound(self.sink.machine.binding))
            for holding in self.sink.holdings():
                self.tell(msg.Installed(holding.identity, self.sink.machine.binding, holding))
