"""P1: what is older never replaces what is newer, and frames of an old binding are dropped."""

from __future__ import annotations

from tests.session.jobs import Job, held, shown
from wtransport.session import messages as msg


def test_a_replaced_trainer_that_restarts_lower_never_lowers_a_sink() -> None:
    """The new incarnation resumes from an older checkpoint: its version has the higher publication and the lower number."""
    job = Job(version=5)
    job.sim.kill(job.trainers[0])
    job.trainers = [job.sim.trainer()]
    job.sim.settle()
    (number,) = job.put(3)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "ahead", "g1": "ahead"}
    assert [shown(item) for item in job.generators] == [[5], [5]]


def test_only_a_rewind_goes_down() -> None:
    job = Job(version=5)
    (number,) = job.put(3, rewind=True)
    job.sim.settle()
    assert job.outcomes(number) == {"g0": "delivered", "g1": "delivered"}
    assert [shown(item) for item in job.generators] == [[5, 3], [5, 3]]


def test_a_begin_for_the_binding_before_is_dropped_and_counted() -> None:
    """The sink binds anew while a Begin for its old binding is in flight."""
    job = Job(generators=1, version=1)
    job.put(2)
    choice = job.until_message(msg.Begin, job.generators[0])
    sink = job.generators[0].sink
    assert sink is not None
    sink.bind()
    job.sim.step(choice)
    assert sink.machine.dropped["begin"] + sink.machine.dropped["credit"] == 1
    job.sim.settle()
    assert held(job.generators[0]) == 2
