"""Every fault at every message boundary of a put and of a pull; then everything runs out, and everybody ends well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.session.jobs import Job, assert_settled

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS: dict[str, Callable[[Job], object]] = {
    "cut g0": lambda job: job.sim.cut(job.generators[0], job.trainers[0]),
    "kill g0": lambda job: job.sim.kill(job.generators[0]),
    "kill trainer": lambda job: job.sim.kill(job.trainers[0]),
    "replace trainer": lambda job: (job.sim.kill(job.trainers[0]), job.sim.trainer()),
    "cut trainer's channel": lambda job: job.sim.cut_channel(job.trainers[0]),
    "cut g0's channel": lambda job: job.sim.cut_channel(job.generators[0]),
    "coordinator restarts": lambda job: (job.sim.kill_coordinator(), job.sim.start_coordinator()),
    "coordinator is away": lambda job: (job.sim.kill_coordinator(), job.sim.later(1.5, job.sim.start_coordinator)),
    "bind anew": lambda job: job.generators[0].sink.bind(),  # type: ignore[union-attr]
}


def _steps(make: Callable[[], Job]) -> int:
    return make().sim.run()


def _walk(make: Callable[[], Job], fault: Callable[[Job], object]) -> int:
    count = _steps(make)
    for boundary in range(count + 1):
        job = make()
        done = job.sim.run(boundary)
        assert done == boundary
        fault(job)
        try:
            job.sim.settle()
            assert_settled(job.sim)
        except AssertionError as error:
            raise AssertionError(f"fault before step {boundary}: {error}") from error
    return count


def _put(kind: str) -> Job:
    job = Job(generators=2, version=1)
    job.put(2, kind=kind)
    return job


def _pull() -> Job:
    """g1 joins late and pulls from the trainer, or from g0."""
    job = Job(generators=1, version=1)
    job.generators.append(job.sim.generator("g1"))
    return job


def _pull_of_a_generator() -> Job:
    """The trainer is gone: only g0 holds the version that g1 pulls."""
    job = Job(generators=1, version=1)
    job.sim.kill(job.trainers[0])
    job.sim.settle()
    job.generators.append(job.sim.generator("g1"))
    return job


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", ["snapshot", "reference"])
def test_put(name: str, kind: str) -> None:
    assert _walk(lambda: _put(kind), FAULTS[name]) > 20


@pytest.mark.parametrize("name", FAULTS)
def test_pull(name: str) -> None:
    assert _walk(_pull, FAULTS[name]) > 20


@pytest.mark.parametrize("name", [item for item in FAULTS if "trainer" not in item])
def test_pull_of_a_generator(name: str) -> None:
    def fault(job: Job) -> object:
        return job.sim.cut(job.generators[1], job.generators[0]) if name == "cut g0" else FAULTS[name](job)

    assert _walk(_pull_of_a_generator, fault) > 20
