"""Orchestration at the coordinator: exclusions outlive it, admissions stay made, policies know their bounds (P5)."""

from __future__ import annotations

from tests.session.test_unusual_orders import coordinator, join, sent
from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.coordinator.machine import Coordinator
from wtransport.session.coordinator.report import Pulse, report
from wtransport.session.coordinator.steering import Policies
from wtransport.session.identity import Identity, MemberId, Publication, Term

ASKS = MemberId("operator")


def steer(machine: Coordinator, verb: str, name: str, other: str = "") -> str:
    """The coordinator's complaint, or nothing."""
    machine.out.clear()
    machine.steer(ASKS, msg.SteerRequest(1, verb, name, "asked", other), 1.0)
    (reply,) = [item.message for item in machine.out if isinstance(item, act.Send) and isinstance(item.message, msg.SteerReply)]
    return reply.message


def started(policies: Policies | None = None) -> Coordinator:
    """A trainer and the generators a and b."""
    machine = Coordinator("c", rebuild_s=5.0, answer_timeout_s=30.0, policies=policies or Policies())
    machine.on_join(join("t", "trainer"), b"", 0.0)
    machine.on_join(join("a"), b"", 0.0)
    machine.on_join(join("b"), b"", 0.0)
    machine.out.clear()
    return machine


def states(machine: Coordinator) -> dict[str, str]:
    return {item.record.name: item.state for item in report(machine, {})}


def refused(machine: Coordinator, name: str, incarnation: str) -> bool:
    """Whether that member is refused as it takes its place under a new incarnation."""
    machine.out.clear()
    plain = join(name)
    fields = {key: getattr(plain, key) for key in plain.__dataclass_fields__} | {"member": MemberId(incarnation), "takeover": True}
    machine.on_join(msg.Join(**fields), b"", 2.0)
    return any(to == incarnation for to, _ in sent(machine, msg.Refused))


def test_a_member_that_missed_the_admission_does_not_undo_it() -> None:
    """It was cut off while another was admitted again, and still declares it excluded as it returns to the same coordinator."""
    machine = started()
    assert steer(machine, "exclude", "a") == ""
    assert refused(machine, "a", "a2")
    assert steer(machine, "admit", "a") == ""
    machine.on_lost(MemberId("b"), "lost", "cut off", 1.0)
    machine.on_join(join("b2", excluded=("a",), term=machine.term), b"", 1.0)
    assert not refused(machine, "a", "a3")


def test_a_new_coordinator_keeps_exclusions_unless_it_has_admitted_the_name() -> None:
    machine = coordinator()
    machine.on_join(join("t", "trainer", excluded=("a",), term=Term(1, "before")), b"", 0.0)
    assert refused(machine, "a", "a2")
    assert states(machine)["t"] == "live"
    assert steer(machine, "admit", "a") == ""
    machine.on_join(join("late", excluded=("a",), term=Term(1, "before")), b"", 0.0)
    assert not refused(machine, "a", "a3")


def test_one_that_is_gone_may_be_excluded_and_replaced() -> None:
    machine = started()
    machine.on_lost(MemberId("a"), "lost", "killed", 1.0)
    assert states(machine)["a"] == "lost"
    assert steer(machine, "replace", "a", "c") == ""
    assert states(machine)["a"] == "excluded"
    assert refused(machine, "a", "a2")
    assert steer(machine, "exclude", "c") == "no member is called c"
    assert steer(machine, "dance", "a").startswith("'dance' is none of")
    machine.on_lost(MemberId("b"), "left", "done", 1.0)
    assert "b" not in states(machine)


def test_a_fenced_restart_counts_as_a_loss() -> None:
    """The old process had not been missed yet when the new one came."""
    machine = started(Policies(max_restarts=1))
    assert not refused(machine, "a", "a2")
    assert {item.record.name: item.losses for item in report(machine, {})}["a"] == 1
    assert refused(machine, "a", "a3")
    assert states(machine)["a"] == "excluded"
    assert steer(machine, "admit", "a") == ""
    assert not refused(machine, "a", "a4")


def test_no_policy_goes_below_the_healthy_minimum() -> None:
    machine = started(Policies(min_healthy=1))
    identity = Identity(Publication(1, 1), 3)
    machine.on_straggler(MemberId("t"), msg.Straggler(identity, MemberId("a"), "no slot for 5 s"), 1.0)
    assert states(machine)["a"] == "excluded"
    machine.on_straggler(MemberId("t"), msg.Straggler(identity, MemberId("b"), "no slot for 5 s"), 1.0)
    assert states(machine)["b"] == "live"
    assert steer(machine, "exclude", "b") == ""  # an operator's word is no policy
    machine.on_straggler(MemberId("t"), msg.Straggler(identity, MemberId("b"), "late"), 1.0)
    assert machine.dropped["straggler"] == 1


def test_lag_is_counted_within_a_publication_and_at_least_one_across() -> None:
    machine = started()
    old, new = Publication(1, 1), Publication(1, 2)

    def installed(member: str, publication: Publication, version: int) -> None:
        identity = Identity(publication, version)
        holding = msg.Holding(identity, "slot", (0,), 1, 7)
        machine.on_installed(MemberId(member), msg.Installed(identity, machine.roster.bindings.get(MemberId(member), 0), holding), 1.0)

    def lags() -> dict[str, int | None]:
        return {item.record.name: item.lag for item in report(machine, {MemberId("a"): Pulse(0.1, 3.0, stalled=True)})}

    assert lags() == {"t": None, "a": None, "b": None}
    installed("a", old, 4)
    installed("b", old, 9)
    assert lags() == {"t": None, "a": 5, "b": 0}
    installed("b", new, 2)  # a rewind
    assert lags()["a"] == 1
    assert states(machine) == {"t": "live", "a": "live", "b": "live"}
    stalled = report(machine, {MemberId("a"): Pulse(0.1, 3.0, stalled=True)})[1]
    assert (stalled.state, stalled.seen_s, stalled.progress_s) == ("stalled", 0.1, 3.0)
