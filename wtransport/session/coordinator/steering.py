"""Steering: what an orchestrator, or a policy, may do to members: exclude, admit, replace; and when that happens by itself."""

from __future__ import annotations

from dataclasses import dataclass

from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.coordinator.jobstate import JobState
from wtransport.session.coordinator.roster import REPLACED_HINT
from wtransport.session.identity import MemberId


@dataclass(frozen=True)
class Policies:
    """What the coordinator does without being asked.

    Attributes:
        max_restarts: A name that was lost more often than this is excluded until it is admitted by hand; None never does.
        min_healthy: Live generators below which the job counts as unhealthy, and below which no policy excludes one.
    """

    max_restarts: int | None = None
    min_healthy: int = 0


class Steering(JobState):
    """The part of a coordinator that puts members out of the job and lets them in again.

    Args:
        incarnation: See ``JobState``.
        rebuild_s: See ``JobState``.
        answer_timeout_s: See ``JobState``.
        first_term: See ``JobState``.
        policies: What happens without being asked.
    """

    def __init__(
        self, incarnation: str, *, rebuild_s: float, answer_timeout_s: float, first_term: int = 1, policies: Policies = Policies()
    ) -> None:
        super().__init__(incarnation, rebuild_s=rebuild_s, answer_timeout_s=answer_timeout_s, first_term=first_term)
        self.policies = policies
        self._healthy = False

    def steer(self, requester: MemberId, message: msg.SteerRequest, now: float) -> None:
        """Exclude, admit or replace by name; the answer is what speaks against it, or nothing."""
        match message.verb:
            case "exclude":
                answer = self._exclude(message.name, message.reason, now)
            case "admit":
                answer = self._admit(message.name, message.reason)
            case "replace":
                answer = self._replace(message.name, message.other, message.reason, now)
            case verb:
                answer = f"{verb!r} is none of exclude, admit, replace"
        self.out.append(act.Send(requester, msg.SteerReply(message.request, answer)))

    def on_straggler(self, member: MemberId, message: msg.Straggler, now: float) -> None:
        """A trainer's policy puts a generator out, unless too few would be left."""
        record = self.roster.members.get(message.sink)
        if record is None or record.role != "generator" or member not in self.trainers:
            self.dropped["straggler"] += 1
        elif len(self.roster.generators) <= self.policies.min_healthy:
            detail = f"not excluded, since min_healthy={self.policies.min_healthy}: {message.reason}"
            self._notice("behind", record.name, message.identity.version, detail)
            self.out.append(act.Send(member, msg.StragglerKept(message.identity, message.sink, detail)))
        else:
            self._exclude(record.name, message.reason, now)

    def count_loss(self, record: msg.MemberRecord, cause: str) -> None:
        """A member was lost: one that is lost again and again is not let in any more."""
        losses = self.roster.losses[record.name] = self.roster.losses[record.name] + 1
        most = self.policies.max_restarts
        if most is not None and losses > most and record.member != self.host:
            self.roster.excluded[record.name] = f"lost {losses} times, max_restarts={most}; last: {cause}"
            self._notice("excluded", record.name, None, self.roster.excluded[record.name])

    def watch_health(self) -> None:
        """Say when the job has enough generators, and when it has not any more."""
        count, least = len(self.roster.generators), self.policies.min_healthy
        if least and self._healthy != (count >= least):
            self._healthy = count >= least
            self._notice("healthy" if self._healthy else "unhealthy", "", None, f"{count} live generator(s), min_healthy={least}")

    def fence(self, record: msg.MemberRecord, why: str, now: float) -> None:
        """Another is to have the member's place: it learns so, and does not come back under it."""
        self.out.append(act.Send(record.member, msg.Refused("fenced", why, REPLACED_HINT, False)))
        self.on_lost(record.member, "fenced", why, now)

    def on_lost(self, member: MemberId, kind: str, cause: str, now: float) -> None:
        """A member is gone (``lost``, ``left``, ``fenced``, ``excluded``): tell all, and go on without it."""
        raise NotImplementedError

    def _exclude(self, name: str, reason: str, now: float) -> str:
        named = [item for item in self.roster.members.values() if item.name == name]
        if not named and name not in self.roster.departed:
            return f"no member is called {name}"
        if any(item.member == self.host for item in named):
            return f"{name} hosts the coordinator; serve it apart if its trainer may have to go"
        self.roster.excluded[name] = reason
        for record in named:
            self.out.append(act.Send(record.member, msg.Refused("fenced", f"excluded: {reason}", "wait for admit()", True)))
            self.on_lost(record.member, "excluded", reason, now)
        if not named:
            self._notice("excluded", name, None, reason)
            self._announce_view()
        return ""

    def _admit(self, name: str, reason: str) -> str:
        if name not in self.roster.excluded:
            return f"{name} is not excluded"
        del self.roster.excluded[name]
        self.roster.losses.pop(name, None)
        self.roster.admitted.add(name)
        self._notice("admitted", name, None, reason)
        self._announce_view()
        return ""

    def _vacate(self, name: str, reason: str, now: float) -> str:
        """The live member of that name goes for good, and the next one under it may come in."""
        named = [item for item in self.roster.members.values() if item.name == name]
        if any(item.member == self.host for item in named):
            return f"{name} hosts the coordinator; serve it apart if its trainer may have to go"
        for record in named:
            self.fence(record, reason or f"another {name} is to take this member's place", now)
        return "" if named else f"no live member is called {name}: another may join under that name"

    def _replace(self, old: str, new: str, reason: str, now: float) -> str:
        """*old* goes for good and *new* may have its place, in whatever order they come and go."""
        if old == new:
            return self._vacate(old, reason, now)
        if old not in self.roster.excluded and (answer := self._exclude(old, reason or f"replaced by {new}", now)):
            return answer
        if new in self.roster.excluded:
            self._admit(new, f"replaces {old}")
        self._notice("replaced", old, None, f"by {new}")
        return ""
