"""P2: a leased slot is not written; no slot in time means behind, never a lost version."""

from __future__ import annotations

from tests.session.jobs import Job, held


def test_a_generator_that_keeps_both_slots_is_behind_and_pulls_later() -> None:
    """Both slots are leased as a put comes: the put ends, the leases end, the version arrives all the same."""
    job = Job(generators=2, version=1)
    slow = job.generators[0]
    slow.taker = False
    assert slow.sink is not None
    slow.sink.lease()
    job.put(2)
    job.sim.settle()
    slow.sink.lease()
    (number,) = job.put(3)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "behind", "g1": "delivered"}
    assert held(slow) == 2
    slow.sink.release()
    slow.sink.release()
    job.sim.settle()
    assert held(slow) == 3


def test_a_waiting_version_is_overtaken_by_the_coordinator_once() -> None:
    """Two versions wait for one slot: the older is overtaken, and is never begun again."""
    job = Job(generators=1, version=1, credit_timeout_s=5.0)
    slow = job.generators[0]
    slow.taker = False
    assert slow.sink is not None
    slow.sink.lease()
    job.put(2)
    job.sim.settle()
    slow.sink.lease()
    (older,) = job.put(3)
    job.sim.run()
    (newer,) = job.put(4)
    job.sim.run()
    slow.sink.release()
    job.sim.settle()
    assert job.outcomes(older) == {"g0": "overtaken"}
    assert job.outcomes(newer) == {"g0": "delivered"}


def test_unused_credit_is_not_lost_with_its_source() -> None:
    """A source dies holding credit: the slot comes back as fresh memory (P7), and serves its replacement."""
    job = Job(generators=1, version=1)
    job.sim.kill(job.trainers[0])
    job.trainers = [job.sim.trainer()]
    job.sim.settle()
    (number,) = job.put(2)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "delivered"}
