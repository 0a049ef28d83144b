"""P6: a new coordinator takes a higher term, and rebuilds before it decides."""

from __future__ import annotations

from tests.session.jobs import Job, held
from wtransport.session.identity import Term


def test_a_lower_or_tied_foreign_term_is_refused() -> None:
    mine = Term(2, "a")
    assert not mine.accepts(Term(1, "z"))
    assert not mine.accepts(Term(2, "b"))
    assert mine.accepts(Term(2, "a"))
    assert mine.accepts(Term(3, "b"))


def test_a_restarted_coordinator_takes_a_higher_term_and_keeps_the_publication() -> None:
    """Its counter starts at 1 again, which all members refuse: it must go above theirs."""
    job = Job(version=1)
    before = job.trainers[0].membership.publication
    job.sim.kill_coordinator()
    job.sim.start_coordinator()
    job.sim.settle()
    assert {item.membership.term.counter for item in job.sim.members.values()} == {2}
    assert job.trainers[0].membership.publication == before


def test_a_newcomer_is_admitted_only_once_the_roster_is_back() -> None:
    """g1 never returns: a newcomer waits rebuild_s, no longer."""
    job = Job(version=1)
    job.sim.kill_coordinator()
    job.sim.kill(job.generators[1])
    job.sim.start_coordinator()
    job.until(lambda _: job.trainers[0].membership.term.counter == 2)
    new = job.sim.generator("new")
    began = job.sim.now
    while not new.membership.admitted:
        assert job.sim.tick()
        job.sim.run()
    assert began + 0.5 * job.sim.rebuild_s < job.sim.now <= began + 2 * job.sim.rebuild_s
    job.sim.settle()
    assert held(new) == 1


def test_an_admitted_put_goes_on_without_a_coordinator() -> None:
    job = Job(version=1)
    (number,) = job.put(2)
    job.until_write(job.trainers[0])
    job.sim.kill_coordinator()
    job.sim.run()
    assert job.outcomes(number) == {"g0": "delivered", "g1": "delivered"}


def test_a_put_without_a_coordinator_waits_within_its_deadline() -> None:
    job = Job(version=1)
    job.sim.kill_coordinator()
    (late,) = job.put(2)
    job.sim.settle()
    assert job.trainers[0].source.settled[late] == ("error", "deadline")
