"""P10: every wait ends, every work settles once, no timer spins."""

from __future__ import annotations

from tests.session.jobs import Job
from wtransport.session import messages as msg


def test_a_put_ends_though_a_sink_never_answers() -> None:
    """The generator hangs after the part: its link stays up and nothing comes."""
    job = Job(generators=1, version=1)
    (number,) = job.put(2)
    job.until_message(msg.Part, job.generators[0])
    machine = job.trainers[0].source
    for _ in range(10):
        deadline = job.trainers[0].next_deadline()
        if deadline is None:
            break
        machine.machine.on_time(deadline)
        job.trainers[0].pump()
        while machine.digests:
            machine.digest()
    assert job.outcomes(number) == {"g0": "lost"}


def test_memory_is_given_back_only_when_the_write_has_settled() -> None:
    """The sink dies in mid-write: the put is not done before the native work is."""
    job = Job(generators=1, version=1)
    job.sim.hold_writes = True
    (number,) = job.put(2)
    write = job.until_write(job.trainers[0])
    job.sim.kill(job.generators[0])
    job.sim.run()
    assert number not in job.trainers[0].source.settled
    job.sim.step(write)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "lost"}


def test_the_deadline_of_a_put_whose_digest_is_read_does_not_spin() -> None:
    """Reading a large digest takes longer than the coordinator's answer may: the timer must not fire again and again."""
    job = Job(version=1)
    source = job.trainers[0].source
    number = source.put(1)
    job.until(lambda item: item == "digest t0")
    source.machine.on_time(1e6)
    assert source.machine.next_deadline() is None
    job.sim.settle()
    assert source.settled[number] == ("done", {})


def test_a_withdrawal_after_the_last_outcome_does_not_spin() -> None:
    """Cancelled while the digest is read: the put is held or withdrawn, and in neither case is a deadline left due."""
    job = Job(version=1)
    (number,) = job.put(2)
    job.until(lambda item: item == "digest t0")
    source = job.trainers[0].source
    source.machine.withdraw(number, job.sim.now)
    job.trainers[0].pump()
    source.digest()
    job.sim.settle()
    assert number in source.settled
    assert source.machine.next_deadline() is None
