"""P9: who holds a version serves it; committed is what does not depend on a reference."""

from __future__ import annotations

from tests.session.jobs import Job, held
from wtransport.session.actions import GetFailed
from wtransport.session.coordinator.ledger import Ledger
from wtransport.session.identity import Identity, MemberId, Publication
from wtransport.session.messages import Available, Holding
from wtransport.session.sink.landing import Waiting

ONE = Identity(Publication(1, 1), 1)


def test_references_make_available_and_not_committed() -> None:
    ledger = Ledger()
    for rank in (0, 1):
        ledger.hold(MemberId(f"t{rank}"), Holding(ONE, "reference", (rank,), 2, 7))
    state = ledger.versions[ONE]
    assert not state.available
    state.settled = {0, 1}
    assert state.available
    assert not state.committed
    ledger.hold(MemberId("t0"), Holding(ONE, "snapshot", (0,), 2, 7))
    assert not state.committed
    ledger.hold(MemberId("t1"), Holding(ONE, "snapshot", (1,), 2, 7))
    assert state.committed


def test_an_installed_version_outlives_its_trainers() -> None:
    job = Job(trainers=2, generators=1, version=1)
    for trainer in job.trainers:
        job.sim.kill(trainer)
    job.sim.settle()
    late = job.sim.generator("late")
    job.sim.settle()
    assert held(late) == 1


def test_a_late_joiner_combines_the_trainers_parts() -> None:
    job = Job(trainers=2, generators=0)
    job.put(1)
    job.sim.settle()
    late = job.sim.generator("late")
    job.sim.settle()
    assert held(late) == 1


def test_a_pull_survives_the_loss_of_the_only_holder_it_knew() -> None:
    """Another holder installed the version after the offer: the puller must hear of it when the first dies."""
    job = Job(generators=2, version=1)
    late = job.sim.generator("late", bind=False)
    job.sim.run()
    job.sim.kill(job.trainers[0])
    job.sim.kill(job.generators[0])
    assert late.sink is not None
    late.sink.bind()
    job.sim.settle()
    assert held(late) == 1


def test_a_holder_that_comes_back_is_offered_again() -> None:
    """The only holder loses its channel: unavailable, then available once it has re-declared what it holds."""
    job = Job(generators=1, version=1)
    job.sim.kill(job.trainers[0])
    job.sim.settle()
    late = job.sim.generator("late")
    job.sim.cut_channel(job.generators[0])
    job.sim.settle()
    assert held(late) == 1


def test_ranks_that_ended_their_put_before_they_knew_a_sink_do_not_leave_it_half_landed() -> None:
    """g1 joins in the middle: rank 0 delivers to it, rank 1 has ended its put already. The rest is pulled."""
    job = Job(trainers=2, generators=0)
    for rank in (0, 1):
        job = Job(trainers=2, generators=0)
        job.trainers[1 - rank].source.put(1)
        job.sim.run()
        late = job.sim.generator("late")
        job.sim.run()
        job.trainers[rank].source.put(1)
        job.sim.settle()
        assert held(late) == 1


def test_a_pull_that_finds_no_slot_here_is_not_the_holders_fault() -> None:
    """The free slot is credit of a source that does not answer: once it is given up, the same holder is asked again."""
    job = Job(generators=2, version=1)
    sink = job.generators[1].sink
    assert sink is not None
    machine, holder, newer = sink.machine, job.generators[0].id, Identity(Publication(1, 1), 2)
    machine.catchup.linked.add(holder)
    machine.catchup.on_available(Available(newer, 1, (holder,), ()), job.sim.now)
    assert machine.catchup.pull is not None
    deadline = machine.catchup.pull.deadline
    assert machine.slots.writable() is None  # the trainer's credit, which it does not return
    machine.waiting[newer] = Waiting(newer, "pull:it", 1, 1, job.sim.now + 1.0, {0: holder})
    machine.on_time(job.sim.now + 1.0)
    assert newer not in machine.waiting
    machine.on_time(deadline)  # it has answered: its silence since then is counted from when it was asked anew
    assert machine.catchup.pull is not None
    assert machine.catchup.pull.members == (holder,)
    assert not [action for action in machine.out if isinstance(action, GetFailed)]
