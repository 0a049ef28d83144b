"""Any order of events that hypothesis can think of: the rules hold after every step, and everything that is left ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.session.jobs import assert_settled
from wtransport.testing.simulation.simulator import Simulator

if TYPE_CHECKING:
    from wtransport.testing.simulation.member import SimMember

INDEX = st.integers(0, 7)
# More of them, and other ones, are for whoever changes the session: the seed is fixed, so that a run can be repeated.
EXAMPLES = int(os.environ.get("SESSION_EXAMPLES", "60"))


class Job(RuleBasedStateMachine):
    """One or two trainer ranks, generators alone or a group of two; faults at any time."""

    @initialize(trainers=st.integers(1, 2), grouped=st.booleans())
    def start(self, trainers: int, grouped: bool) -> None:
        self.sim = Simulator()
        self.trainers = trainers
        self.grouped = grouped
        self.version = 0
        self.next = 0
        for rank in range(trainers):
            self.sim.trainer(rank, trainers)
        for index in range(2):
            self.generator(index)
        self.sim.settle()

    def generator(self, index: int) -> None:
        group, rank, size = ("g", index, 2) if self.grouped else ("", 0, 1)
        self.sim.generator(f"g{index}", group=group, rank=rank, world_size=size, taker=self.grouped)

    def sinks(self) -> list[SimMember]:
        return [member for member in self.sim.members.values() if member.sink is not None]

    @rule(kind=st.sampled_from(["snapshot", "reference"]))
    def put(self, kind: str) -> None:
        self.version += 1
        for rank in range(self.trainers):
            if f"t{rank}" in self.sim.members:
                self.sim.members[f"t{rank}"].source.put(self.version, kind=kind)

    @rule(picks=st.lists(INDEX, min_size=1, max_size=25))
    def happen(self, picks: list[int]) -> None:
        for pick in picks:
            choices = self.sim.choices()
            if choices:
                self.sim.step(choices[pick % len(choices)])

    @rule()
    def everything_happens(self) -> None:
        self.sim.run()

    @rule()
    def time(self) -> None:
        self.sim.tick()

    @rule(pick=INDEX)
    def lease(self, pick: int) -> None:
        found = [item for item in self.sinks() if item.sink.shown is not None and len(item.sink.leases) < 2]
        if found:
            found[pick % len(found)].sink.lease()

    @rule(pick=INDEX)
    def release(self, pick: int) -> None:
        found = [item for item in self.sinks() if item.sink.leases]
        if found:
            found[pick % len(found)].sink.release()

    @rule(pick=INDEX)
    def bind_anew(self, pick: int) -> None:
        found = [item for item in self.sinks() if not item.sink.leases]
        if found and not self.grouped:
            found[pick % len(found)].sink.bind()

    @rule(pick=INDEX)
    def cut(self, pick: int) -> None:
        sinks = self.sinks()
        if sinks:
            sink = sinks[pick % len(sinks)]
            peers = [item for item in self.sim.members.values() if item.id in sink.sink.links]
            if peers:
                self.sim.cut(sink, peers[pick // 2 % len(peers)])

    @rule(pick=INDEX)
    def cut_channel(self, pick: int) -> None:
        members = list(self.sim.members.values())
        if members:
            self.sim.cut_channel(members[pick % len(members)])

    @rule(pick=INDEX)
    def kill(self, pick: int) -> None:
        members = list(self.sim.members.values())
        if members:
            self.sim.kill(members[pick % len(members)])

    @rule()
    def join(self) -> None:
        for rank in range(self.trainers):
            if f"t{rank}" not in self.sim.members:
                self.sim.trainer(rank, self.trainers)
                return
        for index in range(2 if self.grouped else 3):
            if f"g{index}" not in self.sim.members:
                self.generator(index)
                return

    @rule(pick=INDEX)
    def withdraw(self, pick: int) -> None:
        for rank in range(self.trainers):
            member = self.sim.members.get(f"t{rank}")
            if member is not None and pick % self.trainers == rank:
                for number in [item for item in member.source.versions if item not in member.source.settled]:
                    member.source.machine.withdraw(number, self.sim.now)
                    member.pump()

    @rule()
    def coordinator_dies(self) -> None:
        self.sim.kill_coordinator()

    @precondition(lambda self: self.sim.coordinator is None)
    @rule()
    def coordinator_comes_back(self) -> None:
        self.sim.start_coordinator()

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        if self.sim.coordinator is None:
            self.sim.start_coordinator()
        for member in self.sinks():
            while member.sink.leases:
                member.sink.release()
        self.sim.settle()
        for member in self.sim.members.values():
            assert member.source.settled.keys() >= member.source.versions.keys()
        if not self.grouped:
            assert_settled(self.sim)


TestJob = Job.TestCase
TestJob.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    derandomize=True,
)
