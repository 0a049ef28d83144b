"""Small jobs over the simulator, and what their tests ask of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.testing.simulation.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.testing.simulation.member import SimMember


class Job:
    """Trainers t0.., generators g0.., settled, with a version put if asked."""

    def __init__(self, *, trainers: int = 1, generators: int = 2, version: int = 0, group: str = "", **settings: object) -> None:
        self.sim = Simulator(**settings)  # type: ignore[arg-type]
        self.trainers = [self.sim.trainer(rank, trainers) for rank in range(trainers)]
        size = generators if group else 1
        self.generators = [
            self.sim.generator(f"g{index}", group=group, rank=index if group else 0, world_size=size) for index in range(generators)
        ]
        self.sim.settle()
        if version:
            self.put(version)
            self.sim.settle()

    def put(self, version: int, **how: object) -> list[int]:
        """Every live trainer rank puts *version*; returns their numbers."""
        return [item.source.put(version, **how) for item in self.trainers if item.alive]  # type: ignore[arg-type]

    def outcomes(self, number: int, rank: int = 0) -> dict[str, str]:
        """Outcome by generator's name."""
        kind, outcomes = self.trainers[rank].source.settled[number]
        assert kind == "done", outcomes
        assert isinstance(outcomes, dict)
        return {member.split("#")[0]: outcome.name for member, outcome in outcomes.items()}

    def until(self, wanted: Callable[[str], bool]) -> str:
        """Run until a choice is *wanted*, without making it; returns it."""
        for _ in range(5000):
            choices = self.sim.choices()
            found = next((item for item in choices if wanted(item)), None)
            if found is not None:
                return found
            if not choices:
                assert self.sim.tick(), "it never comes"
            else:
                self.sim.step(choices[0])
        raise AssertionError("it never comes")

    def until_message(self, kind: type, to: SimMember | str) -> str:
        """Run until the next message on some link to *to* is a *kind*; returns the choice that delivers it."""
        name = to if isinstance(to, str) else to.id

        def wanted(choice: str) -> bool:
            if not choice.startswith("deliver "):
                return False
            queue = choice.split(" ")[1]
            return queue.split(">")[1].rsplit(".", 1)[0] == name and isinstance(self.sim.network.peek(queue), kind)

        return self.until(wanted)

    def until_write(self, source: SimMember) -> str:
        """Run until *source* has a write under way; returns the choice that completes it."""
        return self.until(lambda item: item.startswith(f"write {source.profile.name} "))


def held(member: SimMember) -> int:
    """The newest version a generator holds, 0 for none."""
    assert member.sink is not None
    identity = member.sink.machine.slots.newest_identity
    return identity.version if identity is not None else 0


def shown(member: SimMember) -> list[int]:
    """Versions its user was shown, in order."""
    assert member.sink is not None
    return [item.identity.version for item in member.sink.shows]


def assert_settled(sim: Simulator) -> None:
    """Every put of a live trainer has settled, and every live generator holds the newest version that is available."""
    for member in sim.members.values():
        assert member.source.settled.keys() >= member.source.versions.keys(), member.source.machine.puts
    assert sim.coordinator is not None
    newest = sim.coordinator.ledger.newest_available()
    generators = [item for item in sim.members.values() if item.sink is not None and not item.over]
    best = max((item.sink.machine.slots.newest_identity for item in generators if item.sink.machine.slots.newest), default=None)  # type: ignore[union-attr, type-var]
    for member in generators:
        sink = member.sink
        assert sink is not None
        if not sink.machine.binding:
            continue
        mine = sink.machine.slots.newest_identity
        assert mine == best, f"{member.profile.name} holds {mine}, another {best}"
        if newest is not None:
            ahead = mine is not None and mine.version > newest.identity.version
            assert mine is not None, member.profile.name
            assert ahead or mine >= newest.identity, f"{member.profile.name} holds {mine}, available is {newest.identity}"
