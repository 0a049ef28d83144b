"""P7: memory that a lost writer may still write is never used again."""

from __future__ import annotations

from tests.session.jobs import Job, held


def test_a_writer_that_wakes_writes_into_abandoned_pages() -> None:
    """The link breaks in mid-write; the sink goes on and installs from the redialled link; then the old write completes."""
    job = Job(generators=1, version=1)
    job.sim.hold_writes = True
    job.put(2)
    stalled = job.until_write(job.trainers[0])
    write = next(iter(job.trainers[0].source.writes.values()))
    sink = job.generators[0].sink
    assert sink is not None
    assert write.memory is not None
    job.sim.cut(job.generators[0], job.trainers[0])
    job.sim.run()
    assert write.memory not in sink.memories
    job.sim.step(stalled)
    job.sim.hold_writes = False
    job.sim.settle()
    assert held(job.generators[0]) == 2


def test_credit_is_abandoned_too() -> None:
    """No put is under way: the source holds a slot as credit only, and could have begun to write."""
    job = Job(generators=1, version=1)
    sink = job.generators[0].sink
    assert sink is not None
    credit = sink.machine.slots.credited()
    assert credit is not None
    pages = sink.memories[credit.index]
    job.sim.cut(job.generators[0], job.trainers[0])
    job.sim.settle()
    assert all(item is not pages for item in sink.memories)
