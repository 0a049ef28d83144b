"""P5: one live member per name, the newer one; an incarnation never comes back."""

from __future__ import annotations

from tests.session.jobs import Job, held
from wtransport.session.membership import Profile
from wtransport.testing.simulation.member import SimMember


def newcomer(job: Job, old: SimMember, *, takeover: bool = False) -> SimMember:
    """Another process under the name of *old*, which dials at once."""
    new = SimMember(job.sim, old.profile, taker=True, takeover=takeover)
    job.sim.members["newcomer"] = new
    new.connect()
    return new


def test_a_newcomer_under_the_name_of_a_live_member_is_refused() -> None:
    job = Job(version=1)
    for old in (job.trainers[0], job.generators[0]):
        new = newcomer(job, old)
        job.sim.settle()
        assert new.over
        assert new._refusal is not None
        assert (new._refusal.code, new._refusal.redraw) == ("join_refused", False)
        assert f"the name {old.profile.name} is taken" in new._refusal.message
        assert "takeover=True" in new._refusal.hint
        assert not old.over
    (number,) = job.put(2)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "delivered", "g1": "delivered"}


def test_so_is_one_of_another_name_that_claims_a_rank_and_one_of_another_world_size() -> None:
    job = Job(trainers=2, group="engine", version=1)
    for profile, said in (
        (Profile("trainer", "", 1, 2, "other"), "rank 1 is taken"),
        (Profile("generator", "engine", 0, 2, "other"), "rank 0 is taken"),
        (Profile("trainer", "", 2, 3, "other"), "says world_size=3, but t"),
        (Profile("generator", "engine", 2, 3, "other"), "says world_size=3, but g"),
    ):
        new = SimMember(job.sim, profile, taker=True)
        job.sim.members["newcomer"] = new
        new.connect()
        job.sim.settle()
        assert new.over
        assert new._refusal is not None
        assert said in new._refusal.message


def test_a_newcomer_waits_for_a_silent_holder_to_be_lost() -> None:
    """Nothing is heard of the old one: the claim is open until it is known to be gone, then the newcomer is in."""
    job = Job(generators=1, version=1)
    old = job.generators[0]
    old.alive = False
    new = newcomer(job, old)
    job.sim.settle()
    assert not new.membership.admitted
    assert not new.over
    assert job.sim.coordinator is not None
    job.sim.coordinator.on_lost(old.id, "lost", "silent", job.sim.now)
    job.sim.pump_coordinator()
    job.sim.settle()
    assert new.membership.admitted


def test_of_two_that_wait_for_one_place_one_gets_it() -> None:
    job = Job(generators=1, version=1)
    old = job.generators[0]
    old.alive = False
    first = newcomer(job, old)
    second = SimMember(job.sim, old.profile, taker=True)
    job.sim.members["second"] = second
    second.connect()
    job.sim.settle()
    assert job.sim.coordinator is not None
    job.sim.coordinator.on_lost(old.id, "lost", "silent", job.sim.now)
    job.sim.pump_coordinator()
    job.sim.settle()
    assert first.membership.admitted
    assert second.over


def test_who_gives_up_claims_nothing_any_more() -> None:
    job = Job(generators=1, version=1)
    old = job.generators[0]
    old.alive = False
    new = newcomer(job, old)
    job.sim.settle()
    job.sim.members["newcomer"] = new
    job.sim.cut_channel(new)
    new.alive = False
    job.sim.settle()
    assert job.sim.coordinator is not None
    assert job.sim.coordinator.claims.contested() == {}


def test_a_newcomer_that_takes_over_fences_the_one_before() -> None:
    """The old process is told that it is fenced, and does not come back."""
    job = Job(generators=1, version=1)
    old = job.generators[0]
    new = newcomer(job, old, takeover=True)
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
