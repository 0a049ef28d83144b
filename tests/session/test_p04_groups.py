"""P4: every rank of a group sees the same sequence."""

from __future__ import annotations

from tests.session.jobs import Job, shown


def test_nothing_is_shown_until_every_rank_holds_it() -> None:
    job = Job(group="g", version=1, hold_writes=True)
    assert [shown(item) for item in job.generators] == [[], []]
    job.sim.step(job.until_write(job.trainers[0]))
    job.sim.run()
    assert [shown(item) for item in job.generators] == [[], []]
    job.sim.hold_writes = False
    job.sim.settle()
    assert [shown(item) for item in job.generators] == [[1], [1]]


def test_the_coordinator_waits_for_the_slowest_reader() -> None:
    """Rank 1's user has not taken number 1: nobody is shown number 2."""
    job = Job(group="g")
    job.generators[1].taker = False
    for version in (1, 2):
        job.put(version)
        job.sim.settle()
    assert [shown(item) for item in job.generators] == [[1], [1]]
    job.generators[1].taker = True
    job.generators[1].pump()
    job.sim.settle()
    assert [shown(item) for item in job.generators] == [[1, 2], [1, 2]]


def test_a_replaced_rank_is_served_what_the_others_show() -> None:
    """A rank dies; survivors keep what they show; its replacement is shown the same number."""
    job = Job(group="g", version=1)
    job.sim.kill(job.generators[1])
    job.sim.settle()
    new = job.sim.generator("g1", group="g", rank=1, world_size=2)
    job.sim.settle()
    assert shown(new) == [1]
    job.put(2)
    job.sim.settle()
    assert [shown(job.generators[0]), shown(new)] == [[1, 2], [1, 2]]


def test_a_new_coordinator_goes_on_with_the_sequence() -> None:
    job = Job(group="g", version=1)
    job.sim.kill_coordinator()
    job.sim.start_coordinator()
    job.sim.settle()
    job.put(2)
    job.sim.settle()
    assert [[(item.seq, item.identity.version) for item in member.sink.shows] for member in job.generators if member.sink] == [
        [(1, 1), (2, 2)],
        [(1, 1), (2, 2)],
    ]
