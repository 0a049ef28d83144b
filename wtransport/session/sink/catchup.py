"""Pulls: how a sink that is late, behind or new gets the newest version from whoever holds it (P9)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import Identity, MemberId
from wtransport.session.sink.landing import PullState

if TYPE_CHECKING:
    from wtransport.session.sink.landing_book import LandingBook

_MAX_ATTEMPTS = 5


class CatchUp:
    """Pull policy of one sink: one pull at a time, of the newest available version, from one whole holder or all part holders."""

    def __init__(self, sink: LandingBook, stall_timeout_s: float) -> None:
        self._sink = sink
        self._stall_timeout_s = stall_timeout_s
        self.available: msg.Available | None = None
        self.gone: Identity | None = None  # what nobody holds any more, while nothing else is to be had
        self.pull: PullState | None = None
        self.linked: set[MemberId] = set()
        self._attempts: Counter[Identity] = Counter()
        self._gave_up: Identity | None = None
        self._why = ""  # the last holder that could not serve said this
        self._misfit = ""  # why the binding does not fit what a holder has
        self._refused: set[tuple[Identity, MemberId]] = set()

    def rebound(self) -> None:
        """A new binding: whatever was asked was asked for the old one."""
        self.pull = None
        self._attempts.clear()
        self._start_afresh()

    def try_again(self) -> None:
        """The user asks for what could not be had before: every holder is asked once more."""
        if self._gave_up is not None and self.pull is None:
            del self._attempts[self._gave_up]
            self._start_afresh()

    def _start_afresh(self) -> None:
        self._gave_up = None
        self._why = self._misfit = ""
        self._refused.clear()

    def wants(self, identity: Identity) -> bool:
        """Whether *identity* is being pulled: its Begin is welcome though it failed, or was settled, before."""
        return self.pull is not None and self.pull.identity == identity

    def on_available(self, message: msg.Available, now: float) -> None:
        """The coordinator says who holds the newest version."""
        if message != self.available:
            # Other holders: worth trying again.
            pulled = {self.pull.identity: self._attempts[self.pull.identity]} if self.pull is not None else {}
            self._attempts = Counter({**pulled, message.identity: 0})
            self._gave_up = None
        self.available, self.gone = message, None
        self._refused = {item for item in self._refused if item[0] == message.identity}
        self._sink.shows.on_available(message.identity)
        self._sink.advance(now)

    def on_unavailable(self, identity: Identity, now: float) -> None:
        """Nobody holds it any more."""
        if self.available is None or self.available.identity == identity:
            self.available, self.gone = None, identity
        if self.wants(identity):
            self._give_up(identity, "unavailable", "no live member holds the version any more")
        self._sink.advance(now)

    def on_source_ready(self, member: MemberId, now: float) -> None:
        """A link to *member* is up (again): what it could not give over the last one it may give now."""
        self.linked.add(member)
        self._refused = {item for item in self._refused if item[1] != member}
        self._gave_up = None
        self._ask(now)
        self._sink.advance(now)

    def on_pull_refused(self, source: MemberId, message: msg.PullRefused, now: float) -> None:
        """The holder cannot serve it: try others."""
        if self.wants(message.identity) and message.binding == self._sink.binding:
            self._refused.add((message.identity, source))
            if message.code == "manifest_mismatch":
                self._misfit = message.message
            self._retry(message.message)
            self._sink.advance(now)

    def holder_failed(self, member: MemberId, cause: str, now: float) -> None:
        """A holder is gone."""
        self.linked.discard(member)
        if self.pull is not None and member in self.pull.members:
            self._refused.add((self.pull.identity, member))
            self._attempts[self.pull.identity] -= 1  # a lost link is not the version's fault, and is dialled again at a measured pace
            self._retry(cause)

    def short_of_slots(self, identity: Identity) -> None:
        """What was pulled found no slot here: not the holder's fault, so that it is asked again once there is one."""
        if self.wants(identity):
            self._attempts[identity] -= 1
            self.pull = None

    def landing_failed(self, identity: Identity) -> None:
        """What was pulled did not install."""
        if self.wants(identity):
            self._retry("the version did not install")

    def on_time(self, now: float) -> None:
        """No answer within the deadline: ask elsewhere; a landing under way renews it."""
        if self.pull is not None and self.pull.deadline <= now:
            if self.pull.identity in self._sink.landings or self.pull.identity in self._sink.waiting:
                self.pull.deadline = now + self._stall_timeout_s
            else:
                self._refused.update((self.pull.identity, member) for member in self.pull.members)
                self._retry("no answer from the holder")

    def advance(self, now: float) -> None:
        """Start a pull if a newer version is available, nothing newer is on its way, and a slot could take it."""
        sink = self._sink
        held = sink.slots.newest_identity
        if self.pull is not None and held is not None and not sink.newer(self.pull.identity, held):
            self.pull = None
        if self.available is None or self.pull is not None:
            return
        identity = self.available.identity
        if held is not None and not sink.newer(identity, held):
            return
        if any(item >= identity for item in (*sink.landings, *sink.waiting)) or identity == self._gave_up:
            return
        if sink.slots.writable() is None and sink.slots.credited() is None:
            return
        members = self._choose(self.available)
        if members:
            self._attempts[identity] += 1
            self.pull = PullState(identity, members, now + self._stall_timeout_s)
            sink.out += [act.NeedLink(member) for member in members if member not in self.linked]
            self._ask(now)
        else:
            last = f"; the last one: {self._why}" if self._why else ""
            self._give_up(identity, "unavailable", f"no holder of the version could serve it{last}")

    def _choose(self, available: msg.Available) -> tuple[MemberId, ...]:
        whole = [member for member in available.whole if (available.identity, member) not in self._refused]
        if whole:
            # Spread: joiners of the same moment start at different holders.
            return (whole[self._attempts[available.identity] % len(whole)],)
        if available.parts and not any((available.identity, member) in self._refused for member in available.parts):
            return available.parts
        return ()

    def _ask(self, now: float) -> None:
        pull = self.pull
        if pull is not None and not pull.asked and all(member in self.linked for member in pull.members):
            pull.asked = True
            pull.deadline = now + self._stall_timeout_s
            self._sink.out += [act.Send(member, msg.Pull(pull.identity, self._sink.binding)) for member in pull.members]

    def _retry(self, why: str) -> None:
        self._why = why
        pull, self.pull = self.pull, None
        if pull is not None and self._attempts[pull.identity] >= _MAX_ATTEMPTS:
            self._give_up(pull.identity, "unavailable", f"{why}, after {_MAX_ATTEMPTS} attempts")

    def _give_up(self, identity: Identity, code: str, message: str) -> None:
        self.pull = None
        self._gave_up = identity
        if self._misfit:
            code, message, self._misfit = "manifest_mismatch", self._misfit, ""
        self._sink.out.append(act.GetFailed(identity, code, message))
