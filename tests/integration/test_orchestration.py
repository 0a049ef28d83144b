"""What an orchestrator sees and does: members with their state, exclude, admit, replace, and the coordinator's policies."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

import wtransport
from tests.integration.conftest import outcome, reaches
from wtransport.testing.cluster.cluster import PeerError, Process, until

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = {"silent_after_s": 0.6, "heartbeat_interval_s": 0.1}


def told(process: Process, name: str) -> dict[str, Any]:
    """What the coordinator says of that member."""
    return next(item for item in process.call("members") if item["name"] == name)


def becomes(process: Process, name: str, state: str) -> dict[str, Any]:
    return until(lambda: item if (item := told(process, name))["state"] == state else None, what=f"{name} to be {state}")


def kinds(process: Process, name: str) -> list[str]:
    return [event["kind"] for event in process.call("events") if event["member"] == name]


def test_members_tell_state_version_lag_and_age(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config=QUICK)
    member("generator", name="good", config=QUICK, bind={})
    bad = member("generator", name="bad", config=QUICK, bind={})
    reaches(trainer, "good", "bad")
    trainer.call("put", version=1)
    found = {item["name"]: item for item in trainer.call("members")}
    assert set(found) == {"trainer-0", "good", "bad"}
    good = found["good"]
    assert (good["state"], good["cause"], good["version"], good["lag"], good["losses"]) == ("live", "", 1, 0, 0)
    assert good["publication"] == found["trainer-0"]["publication"]
    assert 0 < good["seen_s"] < 0.6
    assert 0 <= good["progress_s"] < 0.6
    assert found["trainer-0"]["seen_s"] == 0  # it hosts the coordinator
    bad.call("get", keep=True)
    trainer.call("put", version=2)
    bad.call("get", key="", keep=True)
    receipt = trainer.call("put", version=7)  # both slots are read there: it stays where it is
    assert outcome(receipt, "bad") == "behind"
    held = told(trainer, "bad")
    assert (held["version"], held["lag"]) == (2, 5)
    bad.signal(signal.SIGSTOP)
    lost = becomes(trainer, "bad", "lost")
    assert "no heartbeat" in lost["cause"]
    assert lost["seen_s"] is None
    assert lost["losses"] == 1
    bad.signal(signal.SIGCONT)
    back = becomes(trainer, "bad", "live")
    assert back["losses"] == 1
    assert back["incarnation"] != lost["incarnation"]
    good_view = told(bad, "good")
    assert good_view["version"] == 7


def test_a_member_whose_python_is_held_up_is_stalled_not_lost(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config=QUICK)
    busy = member("generator", name="busy", config=QUICK, bind={})
    reaches(trainer, "busy")
    busy.start("block", where="loop", how="gil", seconds=2.5)
    stalled = becomes(trainer, "busy", "stalled")
    assert "no Python has run" in stalled["cause"]
    assert stalled["seen_s"] < 0.6
    assert becomes(trainer, "busy", "live")["losses"] == 0


def test_a_replacement_takes_the_place_rank_and_group_included(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    old = member("generator", name="old", group="engine", rank=0, world_size=2, bind={})
    member("generator", name="peer", group="engine", rank=1, world_size=2, bind={})
    reaches(trainer, "old", "peer")
    trainer.call("put", version=1)
    with pytest.raises(PeerError, match="rank 0 is taken: old "):
        member("generator", name="new", group="engine", rank=0, world_size=2)
    trainer.call("replace", old="old", new="new")
    gone = told(trainer, "old")
    assert (gone["state"], gone["cause"]) == ("excluded", "replaced by new")
    until(lambda: "expelled" in kinds(old, "old"), what="it is told")
    assert old.call("get")["version"] == 1  # it keeps what it has
    new = member("generator", name="new", group="engine", rank=0, world_size=2, bind={})
    reaches(trainer, "new", "peer")
    new.start("ready")
    trainer.call("put", version=2)
    assert new.call("ready", timeout_s=10) >= 1
    assert "replaced" in kinds(trainer, "old")
    with pytest.raises(PeerError, match="no member is called nobody"):
        trainer.call("replace", old="nobody", new="new")
    with pytest.raises(PeerError, match="no live member is called nobody"):
        trainer.call("replace", old="nobody", new="nobody")
    with pytest.raises(PeerError, match="hosts the coordinator"):
        trainer.call("replace", old="trainer-0", new="new")


def test_one_that_is_lost_again_and_again_is_let_in_by_hand_only(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config=QUICK | {"max_restarts": 1})
    first = member("generator", name="flaky", config=QUICK, bind={})
    first.kill()
    assert becomes(trainer, "flaky", "lost")["losses"] == 1
    second = member("generator", name="flaky", config=QUICK, bind={})
    second.kill()
    gone = becomes(trainer, "flaky", "excluded")
    assert gone["losses"] == 2
    assert gone["cause"].startswith("lost 2 times, max_restarts=1")
    assert "excluded" in kinds(trainer, "flaky")
    with pytest.raises(PeerError, match="flaky is excluded: lost 2 times"):
        member("generator", name="flaky", config=QUICK | {"connect_timeout_s": 0.5})
    trainer.call("admit", name="flaky")
    member("generator", name="flaky", config=QUICK, bind={})
    assert becomes(trainer, "flaky", "live")["losses"] == 0


def test_too_few_generators_are_an_event(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config={"min_healthy": 2})
    one = member("generator", name="one", bind={})
    member("generator", name="two", bind={})
    until(lambda: "healthy" in kinds(trainer, ""), what="two are there")
    one.kill()
    until(lambda: "unhealthy" in kinds(trainer, ""), what="one is left")
    assert [kind for kind in kinds(trainer, "") if kind.endswith("healthy")] == ["healthy", "unhealthy"]


async def test_without_a_coordinator_the_question_fails_with_its_cause(
    member: Callable[..., Process], url: str, job: Callable[..., Any]
) -> None:
    host = member("trainer")
    generator = await job("generator", name="here")
    assert {item.name for item in await generator.members()} == {"trainer-0", "here"}
    host.signal(signal.SIGSTOP)
    asked = asyncio.create_task(generator.members())
    await asyncio.sleep(0.1)
    host.kill()
    with pytest.raises(wtransport.PeerLostError, match="the coordinator was lost before it answered: ") as caught:
        await asyncio.wait_for(asked, 20)
    assert caught.value.phase == "members"
    with pytest.raises(wtransport.PeerLostError, match="there is no coordinator at the moment"):
        await generator.members()
