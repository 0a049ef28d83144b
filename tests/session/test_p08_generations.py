"""P8: whatever names a generation that has moved on is refused."""

from __future__ import annotations

from tests.session.jobs import Job, held
from wtransport.session import messages as msg
from wtransport.session.identity import Identity, MemberId, Publication
from wtransport.session.sink.slots import SlotTable

A, B = MemberId("a"), MemberId("b")


def test_a_grant_is_valid_for_its_member_and_generation_only() -> None:
    table = SlotTable(1)
    table.claim(table[0], Identity(Publication(1, 1), 1))
    table[0].granted.add(A)
    generation = table[0].generation
    assert table.valid(0, generation, A) is table[0]
    assert table.valid(0, generation, B) is None
    assert table.valid(0, generation - 1, A) is None
    assert table.valid(1, generation, A) is None
    table.abandon(table[0])
    assert table.valid(0, generation, A) is None


def test_a_fresh_slot_never_goes_back_in_generation() -> None:
    table = SlotTable(1)
    table.claim(table[0], None)
    table.abandon(table[0])
    before = table[0].generation
    table.fresh(table[0], 0)
    assert table[0].generation == before


def test_a_part_of_a_generation_before_counts_for_nothing() -> None:
    """A late Part names the slot as it was: the version that lands there now is not completed by it."""
    job = Job(generators=1, version=1)
    sink, source = job.generators[0].sink, job.trainers[0]
    assert sink is not None
    slot = sink.machine.slots.newest
    assert slot is not None
    assert slot.identity is not None
    feed = str(slot.identity.publication)
    before = sink.machine.dropped["part"]
    stale = msg.Part(slot.identity, feed, 0, sink.machine.binding, slot.index, slot.generation - 1, b"", b"")
    sink.machine.on_part(source.id, stale, job.sim.now)
    assert sink.machine.dropped["part"] == before + 1
    assert held(job.generators[0]) == 1


def test_a_verification_of_the_binding_before_does_not_install() -> None:
    """The user binds anew while the landing is verified: the answer names slot and generation, and must fit nothing of the new binding."""
    job = Job(generators=1, version=1)
    job.put(2)
    job.until(lambda item: item == "verify g0")
    sink = job.generators[0].sink
    assert sink is not None
    late = sink.tasks["verify"].pop()
    sink.bind()
    job.until_write(job.trainers[0])
    sink.tasks["verify"].append(late)
    job.sim.step("verify g0")
    assert sink.shown is None
    job.sim.settle()
    assert held(job.generators[0]) == 2


def test_a_holder_that_reuses_its_slot_refuses_the_pull() -> None:
    """g0 is asked for a version, and its slot is overwritten before the answer: g1 gets the newer one, nothing torn."""
    job = Job(generators=1, version=1)
    late = job.sim.generator("g1")
    for version in (2, 3):
        job.put(version)
        job.sim.run(7)
    job.sim.settle()
    assert held(late) == 3
