"""P5: one live member per name, the newer one; an incarnation never comes back."""

from __future__ import annotations

from tests.session.jobs import Job, held
from wtransport.testing.sim_member import SimMember


def test_the_newcomer_under_a_name_fences_the_one_before() -> None:
    """The old process is stopped, not dead: it wakes to learn that it is fenced, and does not come back."""
    job = Job(generators=1, version=1)
    old = job.generators[0]
    new = SimMember(job.sim, old.profile, taker=True)
    job.sim.members["g0-again"] = new
    new.connect()
    assert new.sink is not None
    new.sink.bind()
    job.sim.settle()
    assert old.over
    assert job.sim.coordinator is not None
    assert [item for item in job.sim.coordinator.roster.members if item.startswith("g0")] == [new.id]
    assert held(new) == 1


def test_a_member_that_was_lost_comes_back_as_another_incarnation() -> None:
    job = Job(generators=1, version=1)
    before = job.generators[0].id
    job.sim.cut_channel(job.generators[0])
    job.sim.settle()
    assert job.generators[0].id != before
    (number,) = job.put(2)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "delivered"}


def test_a_trainers_new_incarnation_begins_a_publication() -> None:
    job = Job(version=1)
    before = job.trainers[0].membership.publication
    job.sim.cut_channel(job.trainers[0])
    job.sim.settle()
    assert job.trainers[0].membership.publication > before


def test_a_rebuild_ends_though_every_incarnation_on_the_roster_is_gone() -> None:
    """All channels break at once: each returns redrawn, and must not wait for its own old incarnation again and again."""
    job = Job(version=1)
    for member in (*job.trainers, *job.generators):
        job.sim.cut_channel(member)
    job.sim.settle()
    (number,) = job.put(2)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "delivered", "g1": "delivered"}
