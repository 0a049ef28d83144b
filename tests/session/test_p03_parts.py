"""P3: whole or not at all; withdrawal has one answer for all ranks."""

from __future__ import annotations

from tests.session.jobs import Job, held


def test_half_a_version_is_never_shown() -> None:
    """Rank 1 dies after rank 0's part is written: the version is withdrawn, the landing fails, the old version stays."""
    job = Job(trainers=2, generators=1, version=1)
    numbers = job.put(2)
    job.sim.step(job.until_write(job.trainers[0]))
    job.sim.kill(job.trainers[1])
    job.sim.trainer(1, 2)
    job.sim.settle()
    assert held(job.generators[0]) == 1
    assert job.trainers[0].source.settled[numbers[0]] == ("error", "withdrawn")


def test_the_same_version_again_is_a_no_op() -> None:
    job = Job(version=1)
    (number,) = job.put(1)
    job.sim.settle()
    assert job.trainers[0].source.settled[number] == ("done", {})


def test_a_withdrawn_version_raises_on_the_other_rank() -> None:
    """Rank 0 cancels with both writes under way: nobody installed it, so its number is dead for rank 1 too."""
    job = Job(trainers=2, generators=1, version=1)
    job.sim.hold_writes = True
    numbers = job.put(2)
    job.until_write(job.trainers[0])
    job.trainers[0].source.machine.withdraw(numbers[0], job.sim.now)
    job.trainers[0].pump()
    job.sim.hold_writes = False
    job.sim.settle()
    assert [job.trainers[rank].source.settled[numbers[rank]] for rank in (0, 1)] == [("error", "withdrawn")] * 2
    assert held(job.generators[0]) == 1


def test_an_installed_version_stands_though_withdrawn() -> None:
    """The cancel crosses g0's Installed: the version stands, and whoever lacks it pulls it."""
    job = Job(version=1)
    (number,) = job.put(2)
    job.until(lambda _: held(job.generators[0]) == 2)
    job.trainers[0].source.machine.withdraw(number, job.sim.now)
    job.trainers[0].pump()
    job.sim.settle()
    assert job.trainers[0].source.settled[number][0] == "done"
    assert [held(item) for item in job.generators] == [2, 2]
