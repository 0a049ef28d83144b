"""What a member is told, and what the coordinator keeps, when the usual order of events does not hold (P3, P4, P6, P9, P10)."""

from __future__ import annotations

import pytest

from tests.session.jobs import Job, held, shown
from wtransport.errors import CancelledWorkError, FencedError, SourceChangedError
from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.coordinator.machine import Coordinator
from wtransport.session.identity import NO_PUBLICATION, NO_TERM, Identity, MemberId, Publication, Term
from wtransport.session.sink.machine import Sink
from wtransport.session.source.delivery import PutState
from wtransport.session.source.machine import Source

FIRST = Publication(1, 1)
ONE, TWO = MemberId("g1"), MemberId("g2")


def join(name: str, role: str = "generator", rank: int = 0, world_size: int = 1, group: str = "", **declared: object) -> msg.Join:
    plain = {"term": NO_TERM, "publication": NO_PUBLICATION, "holdings": (), "roster": (), "excluded": (), "binding": 0}
    declaration = msg.Declaration(**(plain | {"shown_seq": 0, "shown": None} | declared))  # type: ignore[arg-type]
    return msg.Join(role, group, rank, world_size, name, MemberId(name), (), declaration, takeover=False)


def coordinator() -> Coordinator:
    return Coordinator("c", rebuild_s=5.0, answer_timeout_s=30.0)


def sent(machine: Coordinator, kind: type) -> list[tuple[MemberId, object]]:
    found = [(item.to, item.message) for item in machine.out if isinstance(item, act.Send) and isinstance(item.message, kind)]
    machine.out.clear()
    return found


def source(*bound: MemberId) -> Source:
    """A trainer with two generators; those *bound* can be written to at once."""
    machine = Source(rank=0, world_size=1, credit_timeout_s=1.0, stall_timeout_s=30.0)
    machine.on_members({ONE: "g1", TWO: "g2"}, 0.0)
    for sink in (ONE, TWO):
        machine.on_sink_linked(sink, 0.0)
        machine.on_bound(sink, msg.Bound(1 if sink in bound else 0), 0.0)
        if sink in bound:
            machine.on_plan_ready(sink, str(FIRST), 1, 1, b"d", 0.0)
            machine.on_grant(sink, msg.Grant(1, 0, 1, None, None), 0.0)
    return machine


def writes(machine: Source) -> list[act.StartWrite]:
    return [item for item in machine.out if isinstance(item, act.StartWrite)]


def test_a_generator_that_settles_at_once_does_not_end_the_put_of_the_others() -> None:
    """The first generator has not bound yet; the second one is written to."""
    machine = source(TWO)
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_admitted(msg.PutAdmitted(1, Identity(FIRST, 1)), 0.0)
    assert machine.puts[1].state is PutState.DELIVERING
    (write,) = writes(machine)
    machine.on_written(write.delivery, 1.0)
    machine.on_installed(TWO, msg.Installed(Identity(FIRST, 1), 1, msg.Holding(Identity(FIRST, 1), "slot", (0,), 1, 0)), 2.0)
    machine.on_digest(1, 7, None, 3.0)
    (done,) = [item for item in machine.out if isinstance(item, act.PutDone)]
    assert {sink: outcome.name for sink, outcome in done.outcomes.items()} == {ONE: "behind", TWO: "delivered"}


@pytest.mark.parametrize("state", [PutState.FINISHING, PutState.HELD])
def test_a_source_that_changed_under_a_pull_ends_the_pull(state: PutState) -> None:
    """A late joiner pulls while the put finishes, or once it is held; the weights are trained on in mid-write."""
    machine = source(ONE)
    machine.on_members({ONE: "g1"}, 0.0)
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_admitted(msg.PutAdmitted(1, Identity(FIRST, 1)), 0.0)
    (write,) = writes(machine)
    machine.on_written(write.delivery, 1.0)
    machine.on_installed(ONE, msg.Installed(Identity(FIRST, 1), 1, msg.Holding(Identity(FIRST, 1), "slot", (0,), 1, 0)), 2.0)
    late = MemberId("late")
    machine.on_sink_linked(late, 2.0)
    machine.on_bound(late, msg.Bound(1), 2.0)
    machine.on_plan_ready(late, str(FIRST), 1, 1, b"d", 2.0)
    machine.on_grant(late, msg.Grant(1, 0, 1, None, None), 2.0)
    if state is PutState.HELD:
        machine.on_digest(1, 7, None, 3.0)
    machine.on_pull(late, msg.Pull(Identity(FIRST, 1), 1), 3.0)
    assert machine.puts[1].state is state
    machine.on_digest(1, 7, None, 4.0)
    write = writes(machine)[-1]
    machine.out.clear()
    machine.on_write_failed(write.delivery, SourceChangedError("changed"), 5.0)
    told = [type(item.message) for item in machine.out if isinstance(item, act.Send) and item.to == late]
    assert msg.Return in told
    assert msg.PullRefused in told
    assert not machine.puts
    assert machine.next_deadline() is None


def test_a_put_whose_digest_was_asked_for_has_a_deadline_again() -> None:
    """The coordinator dies after it asked for the digest of a version that is committed already."""
    machine = source()
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_known(msg.PutKnown(1, Identity(FIRST, 1), True), 1.0)
    assert machine.next_deadline() is None
    machine.on_digest(1, 5, None, 2.0)
    assert machine.next_deadline() == 32.0
    machine.on_time(32.0)
    assert any(isinstance(item, act.PutError) for item in machine.out)


def test_a_put_of_a_member_that_is_expelled_for_good_says_why() -> None:
    machine = source()
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_expelled(FencedError("another took its place"), 1.0)
    (error,) = [item for item in machine.out if isinstance(item, act.PutError)]
    assert (error.code, error.message) == ("fenced", "another took its place")


def test_a_restarted_coordinator_knows_that_what_trainers_hold_is_whole() -> None:
    """Only the trainer holds the version (by snapshot), and a generator joins after the coordinator came back."""
    job = Job(generators=0, version=1)
    job.sim.kill_coordinator()
    job.sim.start_coordinator()
    job.sim.settle()
    late = job.sim.generator("late")
    job.sim.settle()
    assert held(late) == 1


def test_what_was_bound_anew_between_two_coordinators_is_not_believed_to_hold() -> None:
    """A generator binds anew after it said what it holds, and before it is welcomed: it gets the version again."""
    job = Job(version=1)
    job.sim.kill_coordinator()
    job.sim.start_coordinator()
    generator = job.generators[0]
    assert generator.sink is not None
    generator.sink.bind()
    job.sim.settle()
    assert [held(item) for item in job.generators] == [1, 1]


def test_a_newcomer_that_left_while_it_was_queued_is_never_admitted() -> None:
    machine = coordinator()
    roster = tuple(msg.MemberRecord(MemberId(name), "generator", "", 0, 1, name, (), (1, 1)) for name in ("old", "gone"))
    machine.on_join(join("old", term=Term(1, "x"), roster=roster), b"", 0.0)
    machine.on_join(join("ghost"), b"", 1.0)
    machine.on_lost(MemberId("ghost"), "lost", "its channel ended", 2.0)
    machine.on_time(6.0)
    assert list(machine.roster.members) == ["old"]


def test_a_put_that_nobody_waits_for_any_more_does_not_take_the_number() -> None:
    """The first attempt waited for the other rank until it timed out; the second one is what its user waits for."""
    machine = coordinator()
    machine.on_join(join("t0", "trainer", 0, 2), b"", 0.0)
    machine.on_put(MemberId("t0"), msg.PutRequest(1, 5, 0, None, False), 1.0)
    machine.on_put(MemberId("t0"), msg.PutRequest(2, 5, 0, None, False), 40.0)
    machine.on_join(join("t1", "trainer", 1, 2), b"", 50.0)
    assert [message.request for _, message in sent(machine, msg.PutAdmitted)] == [2]  # type: ignore[attr-defined]


def test_versions_that_failed_are_forgotten() -> None:
    machine = coordinator()
    machine.on_join(join("t0", "trainer"), b"", 0.0)
    for version in range(1, 101):
        identity = Identity(machine.publication, version)
        machine.on_put(MemberId("t0"), msg.PutRequest(version, version, 0, None, False), 1.0)
        if version % 2:
            machine.on_put_failed(msg.PutFailed(identity, 0, "a test"), 1.0)
        else:
            machine.on_put_settled(MemberId("t0"), msg.PutSettled(identity, 0, msg.Holding(identity, "reference", (0,), 1, 1)), 1.0)
            machine.on_holding_ended(MemberId("t0"), msg.HoldingEnded(Identity(machine.publication, version - 2)))
    assert len(machine.ledger.versions) <= 2


def test_attempts_are_counted_for_what_is_available_only() -> None:
    sink = Sink(group_size=1, stall_timeout_s=30.0)
    sink.bind(2, 0.0)
    for version in range(100):
        sink.catchup.on_available(msg.Available(Identity(FIRST, version), 1, (ONE,), ()), 0.0)
    assert len(sink.catchup._attempts) <= 2


def test_a_group_that_left_may_come_back_with_another_size() -> None:
    machine = coordinator()
    for rank in range(2):
        machine.on_join(join(f"a{rank}", rank=rank, world_size=2, group="e"), b"", 0.0)
    for rank in range(2):
        machine.on_lost(MemberId(f"a{rank}"), "left", "", 1.0)
    for rank in range(4):
        machine.on_join(join(f"b{rank}", rank=rank, world_size=4, group="e"), b"", 2.0)
    machine.out.clear()
    for rank in range(4):
        machine.on_ready(MemberId(f"b{rank}"), msg.Ready(Identity(FIRST, 1)))
    assert len(sent(machine, msg.Show)) == 4


def test_a_replacement_is_shown_what_the_survivors_hold_unshown() -> None:
    """Rank 1 dies before it has version 2, which rank 0 holds: once the replacement has pulled it, both are shown it."""
    job = Job(trainers=2, generators=2, group="e", version=1)
    survivor, lost = job.generators
    for item in job.generators:
        assert item.sink is not None
        item.sink.lease()
        item.sink.release()
    job.put(2, kind="snapshot")
    while held(survivor) != 2:
        choices = [item for item in job.sim.choices() if f"{lost.id}." not in item and f">{lost.id}" not in item]
        assert choices or job.sim.tick()
        if choices:
            job.sim.step(choices[0])
    job.sim.kill(lost)
    job.sim.settle()
    replacement = job.sim.generator("g1", group="e", rank=1, world_size=2)
    job.sim.settle()
    assert held(replacement) == 2
    assert shown(replacement)[-1:] == shown(survivor)[-1:] == [2]


def test_an_exclusion_outlives_the_coordinator_that_was_told() -> None:
    machine = coordinator()
    machine.on_join(join("t0", "trainer", term=Term(3, "x"), excluded=("out",)), b"", 0.0)
    machine.out.clear()
    machine.on_join(join("out"), b"", 1.0)
    ((_, refused),) = sent(machine, msg.Refused)
    assert isinstance(refused, msg.Refused)
    assert (refused.code, refused.redraw) == ("fenced", True)
    assert "excluded before the coordinator restarted" in refused.message


def test_a_coordinator_whose_term_is_refused_takes_a_higher_one() -> None:
    machine = coordinator()
    machine.on_join(join("t0", "trainer"), b"", 0.0)
    machine.on_join(join("g1"), b"", 0.0)
    machine.out.clear()
    machine.on_term_refused(msg.TermRefused(Term(7, "another")))
    assert machine.term == Term(8, "c")
    assert {to: message for to, message in sent(machine, msg.NewTerm)} == {
        MemberId("t0"): msg.NewTerm(Term(8, "c")),
        MemberId("g1"): msg.NewTerm(Term(8, "c")),
    }


@pytest.mark.parametrize("parted", [False, True])
def test_what_crosses_a_new_binding_settles_at_once(parted: bool) -> None:
    """The generator binds anew while a version is written to it, or after its part was sent: nobody will answer for the old binding."""
    machine = source(ONE)
    machine.on_members({ONE: "g1"}, 0.0)
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_admitted(msg.PutAdmitted(1, Identity(FIRST, 1)), 0.0)
    (write,) = writes(machine)
    if parted:
        machine.on_written(write.delivery, 1.0)
    machine.on_bound(ONE, msg.Bound(2), 2.0)
    if not parted:
        assert any(isinstance(item, act.CancelWrite) for item in machine.out)
        machine.on_write_failed(write.delivery, CancelledWorkError("cancelled"), 2.0)
    machine.on_digest(1, 7, None, 3.0)
    (done,) = [item for item in machine.out if isinstance(item, act.PutDone)]
    assert {sink: outcome.name for sink, outcome in done.outcomes.items()} == {ONE: "behind"}


def test_the_refusal_of_a_pull_for_an_older_binding_does_not_count() -> None:
    sink = Sink(group_size=1, stall_timeout_s=30.0)
    sink.bind(2, 0.0)
    identity = Identity(FIRST, 1)
    sink.catchup.on_source_ready(ONE, 0.0)
    sink.catchup.on_available(msg.Available(identity, 1, (ONE,), ()), 0.0)
    sink.bind(2, 1.0)
    assert sink.catchup.wants(identity)
    sink.catchup.on_pull_refused(ONE, msg.PullRefused(identity, 1, "manifest_mismatch", "does not fit"), 2.0)
    assert sink.catchup.wants(identity)
    assert not sink.catchup._refused
    sink.catchup.on_pull_refused(ONE, msg.PullRefused(identity, 2, "unavailable", "not held"), 3.0)
    assert not sink.catchup.wants(identity)
