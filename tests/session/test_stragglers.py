"""What a put's policy makes of a generator that is late (P2, P10); the coordinator has the last word on putting it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.session.test_unusual_orders import FIRST, ONE, TWO
from wtransport.errors import PeerLostError
from wtransport.session import actions as act
from wtransport.session import messages as msg
from wtransport.session.identity import Identity
from wtransport.session.source.machine import Source

if TYPE_CHECKING:
    from wtransport.session.source.delivery_book import Straggler

WHAT = Identity(FIRST, 1)


def put(straggler: Straggler, *, bound: bool = True) -> Source:
    """A put, 5 s of patience: ONE is served, TWO has begun and has no slot, or (not *bound*) no binding."""
    machine = Source(rank=0, world_size=1, credit_timeout_s=5.0, stall_timeout_s=30.0, straggler=straggler)
    machine.on_members({ONE: "g1", TWO: "g2"}, 0.0)
    for sink in (ONE, TWO):
        machine.on_sink_linked(sink, 0.0)
        if bound or sink == ONE:
            machine.on_bound(sink, msg.Bound(1), 0.0)
            machine.on_plan_ready(sink, str(FIRST), 1, 1, b"d", 0.0)
    machine.on_grant(ONE, msg.Grant(1, 0, 1, None, None), 0.0)
    machine.put(1, 1, b"d", "reference", 0.0)
    machine.on_admitted(msg.PutAdmitted(1, WHAT), 0.0)
    (write,) = [item for item in machine.out if isinstance(item, act.StartWrite)]
    machine.on_written(write.delivery, 0.5)
    machine.on_installed(ONE, msg.Installed(WHAT, 1, msg.Holding(WHAT, "slot", (0,), 1, 0)), 0.6)
    return machine


def outcome(machine: Source) -> str | None:
    """What became of TWO, once the put has ended; its reason behind a colon."""
    machine.on_digest(1, 7, None, 50.0)
    done = [item for item in machine.out if isinstance(item, act.PutDone)]
    if not done:
        return None
    found = done[0].outcomes[TWO]
    return f"{found.name}: {getattr(found, 'reason', '')}"


def asked(machine: Source) -> list[str]:
    """Reasons for which the coordinator was asked to put TWO out."""
    return [item.message.reason for item in machine.out if isinstance(item, act.Send) and isinstance(item.message, msg.Straggler)]


@pytest.mark.parametrize("straggler", ["behind", "wait", "raise"])
def test_who_is_late_is_behind(straggler: Straggler) -> None:
    machine = put(straggler)
    machine.on_behind(TWO, msg.Behind(WHAT, "no slot"), 5.1)
    assert not asked(machine)
    assert outcome(machine) == "behind: no slot"


def test_the_policy_that_excludes_waits_for_the_coordinators_word() -> None:
    machine = put("exclude")
    machine.on_behind(TWO, msg.Behind(WHAT, "no slot"), 5.1)
    assert asked(machine) == ["no slot"]
    assert outcome(machine) is None
    machine.on_members({ONE: "g1"}, 5.2)
    assert outcome(machine) == "excluded: no slot"


def test_it_is_behind_if_the_coordinator_keeps_it() -> None:
    machine = put("exclude")
    machine.on_behind(TWO, msg.Behind(WHAT, "no slot"), 5.1)
    machine.on_straggler_kept(msg.StragglerKept(WHAT, TWO, "min_healthy=2"), 5.2)
    assert outcome(machine) == "behind: min_healthy=2"


def test_a_coordinator_that_does_not_answer_holds_nobody_up() -> None:
    machine = put("exclude")
    machine.on_behind(TWO, msg.Behind(WHAT, "no slot"), 5.1)
    assert machine.next_deadline() == pytest.approx(35.1)
    machine.on_time(35.1)
    assert outcome(machine) == "behind: no slot"


def test_it_may_take_the_version_while_it_is_judged() -> None:
    machine = put("exclude")
    machine.on_behind(TWO, msg.Behind(WHAT, "no slot"), 5.1)
    machine.on_installed(TWO, msg.Installed(WHAT, 1, msg.Holding(WHAT, "slot", (0,), 1, 0)), 5.2)
    assert outcome(machine) == "delivered: "


def test_what_is_settled_for_another_cause_is_not_late() -> None:
    machine = put("exclude")
    machine.on_behind(TWO, msg.Behind(WHAT, "bound anew"), 1.0)
    assert not asked(machine)
    assert outcome(machine) == "behind: bound anew"
    machine = put("exclude")
    machine.on_sink_gone(TWO, PeerLostError("killed"), 1.0)
    assert not asked(machine)
    assert outcome(machine) == "lost: "


def test_one_that_has_not_bound_is_waited_for_by_those_who_wait() -> None:
    assert outcome(put("behind", bound=False)) == "behind: the generator has not bound yet"
    machine = put("wait", bound=False)
    assert outcome(machine) is None
    machine.on_time(5.0)
    assert outcome(machine) == "behind: the generator has not bound yet"
    machine = put("exclude", bound=False)
    machine.on_time(5.0)
    assert asked(machine) == ["the generator has not bound yet"]
    machine = put("wait", bound=False)
    machine.on_bound(TWO, msg.Bound(1), 2.0)
    machine.on_plan_ready(TWO, str(FIRST), 1, 1, b"d", 2.0)
    machine.on_grant(TWO, msg.Grant(1, 0, 1, None, WHAT), 2.0)
    assert len([item for item in machine.out if isinstance(item, act.StartWrite)]) == 2
