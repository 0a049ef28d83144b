"""Processes that are killed, stopped, replaced or put out: what that costs the others, and how the job goes on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import outcome, reaches
from wtransport.testing.cluster.cluster import PeerError, Process, until

if TYPE_CHECKING:
    from collections.abc import Callable

BACKENDS = ["shm", "tcp"]
BIG = {"numel": 8 << 20}


def kinds(process: Process, name: str) -> list[str]:
    """What happened to that member, as this one heard it."""
    return [event["kind"] for event in process.call("events") if event["member"] == name]


def failure(process: Process, do: str, **arguments: Any) -> str:
    """What kind of error that command ends in, if it does."""
    try:
        process.call(do, **arguments)
    except PeerError as error:
        return error.kind
    return ""


def opened(pid: int) -> set[str]:
    """Files that a process has open or mapped."""
    mapped = {line.split(maxsplit=5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if len(line.split(maxsplit=5)) == 6}
    return mapped | {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()}


def unix_names() -> dict[str, str]:
    """Names of the host's Unix sockets by inode."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {row[6]: row[7] for row in rows if len(row) > 7}


def listening(pid: int) -> set[str]:
    """Names of a process's Unix sockets."""
    names = unix_names()
    inodes = {path[len("socket:[") : -1] for path in opened(pid) if path.startswith("socket:[")}
    return {names[inode] for inode in inodes if inode in names}


def incarnations(process: Process) -> dict[str, str]:
    return {item["name"]: item["incarnation"] for item in process.call("members") if item["state"] == "live"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_generator_killed_during_a_put_costs_the_others_nothing(member: Callable[..., Process], backend: str) -> None:
    patient = {"silent_after_s": 10.0}
    trainer = member("trainer", backend=backend, config=patient)
    good = member("generator", name="good", backend=backend, config=patient, bind=BIG)
    bad = member("generator", name="bad", backend=backend, config=patient, bind=BIG)
    reaches(trainer, "good", "bad")
    trainer.call("put", version=1, **BIG)
    bad.signal(signal.SIGSTOP)  # it answers no more: the put is under way when it is killed
    putting = trainer.start("put", version=2, **BIG)
    assert good.call("get", version=2)["values"] == [2.0]
    assert not trainer.done(putting)
    bad.kill()
    receipt = trainer.result(putting, 5.0)
    assert outcome(receipt, "good") == "delivered"
    lost = receipt["outcomes"]["bad"]
    assert lost["outcome"] == "lost", receipt
    assert lost["fields"]["peer"] == "bad"
    assert lost["fields"]["version"] == 2
    assert "lost" in until(lambda: kinds(good, "bad") if "lost" in kinds(good, "bad") else None, what="the event")
    assert outcome(trainer.call("put", version=3, **BIG), "good") == "delivered"
    assert set(incarnations(good)) == {"trainer-0", "good"}


def test_each_put_that_a_loss_ends_is_named_by_its_own_version(member: Callable[..., Process]) -> None:
    patient = {"silent_after_s": 10.0, "credit_timeout_s": 10.0}
    trainer = member("trainer", backend="tcp", config=patient)
    bad = member("generator", name="bad", backend="tcp", config=patient)
    reaches(trainer, "bad")
    trainer.call("put", version=1)
    bad.signal(signal.SIGSTOP)
    puts = {version: trainer.start("put", version=version) for version in (2, 3)}
    until(lambda: trainer.call("links"))
    bad.kill()
    for version, number in puts.items():
        lost = trainer.result(number, 5.0)["outcomes"]["bad"]
        assert (lost["outcome"], lost["fields"]["peer"], lost["fields"]["version"]) == ("lost", "bad", version)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.06])
def test_a_trainer_killed_during_a_put_leaves_no_torn_version(
    start: Callable[..., Process], member: Callable[..., Process], url: str, backend: str, delay_s: float
) -> None:
    start().call("serve", url=url, config={})
    trainer = member("trainer", backend=backend)
    generators = [member("generator", name=name, backend=backend, bind=BIG) for name in ("a", "b")]
    reaches(trainer, "a", "b")
    trainer.call("put", version=1, **BIG)
    trainer.start("put", version=2, **BIG)
    time.sleep(delay_s)
    trainer.kill()
    for generator in generators:
        assert "lost" in until(lambda one=generator: [kind for kind in kinds(one, "trainer-0") if kind == "lost"], what="the event")
        got = generator.call("get")
        assert got["version"] in (1, 2)
        assert got["values"] == [float(got["version"])]
    again = member("trainer", backend=backend)
    reaches(again, "a", "b")
    receipt = again.call("put", version=5, **BIG)
    for name, generator in zip("ab", generators, strict=True):
        assert outcome(receipt, name) == "delivered", receipt
        assert generator.call("get", version=5)["values"] == [5.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_generator_is_lost_and_comes_back_under_a_new_incarnation(member: Callable[..., Process], backend: str) -> None:
    trainer = member("trainer", backend=backend)
    member("generator", name="good", backend=backend)
    stopped = member("generator", name="stopped", backend=backend)
    reaches(trainer, "good", "stopped")
    trainer.call("put", version=1)
    before = incarnations(trainer)["stopped"]
    stopped.signal(signal.SIGSTOP)
    receipt = trainer.call("put", version=2, wait_s=6.0)
    assert outcome(receipt, "good") == "delivered"
    assert outcome(receipt, "stopped") in ("lost", "delivered"), receipt
    until(lambda: "stopped" not in incarnations(trainer), what="the stopped member is lost")
    assert outcome(trainer.call("put", version=3), "good") == "delivered"
    stopped.signal(signal.SIGCONT)
    until(lambda: incarnations(trainer).get("stopped", before) != before, what="a new incarnation")
    got = stopped.call("get", version=3)
    assert got["values"] == [3.0]
    reaches(trainer, "stopped")
    receipt = trainer.call("put", version=4)
    assert outcome(receipt, "stopped") == outcome(receipt, "good") == "delivered", receipt
    assert stopped.call("get", version=4)["values"] == [4.0]


@pytest.mark.parametrize("stopped_s", [0.5, 3.0])
def test_a_trainer_that_was_stopped_goes_on(member: Callable[..., Process], stopped_s: float) -> None:
    trainer = member("trainer")
    generators = {name: member("generator", name=name) for name in ("a", "b")}
    reaches(trainer, *generators)
    trainer.call("put", version=1)
    trainer.signal(signal.SIGSTOP)
    time.sleep(stopped_s)
    assert generators["a"].call("get")["values"] == [1.0]
    trainer.signal(signal.SIGCONT)
    until(lambda: set(incarnations(trainer)) >= {"a", "b"}, what="the members")
    reaches(trainer, *generators)
    trainer.call("put", version=2)
    for generator in generators.values():
        assert generator.call("get", version=2)["values"] == [2.0]
    receipt = trainer.call("put", version=3)
    assert {outcome(receipt, name) for name in generators} == {"delivered"}, receipt


def test_a_generator_takes_the_place_of_a_live_one_when_told_to(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    old = member("generator", name="gen")
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    before = incarnations(trainer)["gen"]
    new = member("generator", name="gen", takeover=True)
    assert incarnations(trainer)["gen"] != before
    assert new.call("get", version=1)["values"] == [1.0]
    assert "fenced" in until(lambda: [kind for kind in kinds(trainer, "gen") if kind == "fenced"], what="the event")
    reaches(trainer, "gen")
    receipt = trainer.call("put", version=2)
    assert {name: item["outcome"] for name, item in receipt["outcomes"].items()} == {"gen": "delivered"}
    assert new.call("get", version=2)["values"] == [2.0]

    until(lambda: failure(old, "get", version=2, timeout_s=1.0) == "FencedError", what="the old one is told")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restarted_trainer_publishes_again(member: Callable[..., Process], backend: str) -> None:
    first = member("trainer", backend=backend)
    generator = member("generator", name="gen", backend=backend)
    reaches(first, "gen")
    first.call("put", version=7)
    first.kill()
    second = member("trainer", backend=backend)
    reaches(second, "gen")
    receipt = second.call("put", version=8)
    assert outcome(receipt, "gen") == "delivered", receipt
    assert generator.call("get", version=8)["values"] == [8.0]


def test_the_same_version_of_a_restarted_trainer_is_not_mistaken_for_the_old_one(member: Callable[..., Process]) -> None:
    first = member("trainer")
    generator = member("generator", name="gen")
    reaches(first, "gen")
    first.call("put", version=7, value=1.0)
    first.kill()
    second = member("trainer")
    reaches(second, "gen")
    receipt = second.call("put", version=8, value=2.0)
    assert outcome(receipt, "gen") == "delivered"
    second.kill()
    third = member("trainer")
    reaches(third, "gen")
    assert failure(third, "put", version=8, value=3.0) == "VersionError"  # it is committed, with other bytes
    assert generator.call("get")["values"] == [2.0]
    receipt = third.call("put", version=8, value=3.0, rewind=True)
    assert outcome(receipt, "gen") == "delivered", receipt
    assert generator.call("get")["values"] == [3.0]


def test_a_restarted_trainer_at_a_lower_version_is_told_that_generators_are_ahead(member: Callable[..., Process]) -> None:
    first = member("trainer")
    generator = member("generator", name="gen")
    reaches(first, "gen")
    first.call("put", version=7)
    first.kill()
    second = member("trainer")
    reaches(second, "gen")
    receipt = second.call("put", version=3)
    assert outcome(receipt, "gen") == "ahead", receipt
    assert receipt["outcomes"]["gen"]["holds"] == 7
    assert generator.call("get")["values"] == [7.0]
    receipt = second.call("put", version=4, rewind=True)
    assert outcome(receipt, "gen") == "delivered", receipt
    assert generator.call("get")["values"] == [4.0]
    assert outcome(second.call("put", version=5), "gen") == "delivered"


def test_kill_of_everybody_leaves_nothing(member: Callable[..., Process], tmp_path: Path) -> None:
    began = time.time()
    members = [member("trainer", backend="shm"), *(member("generator", name=name, backend="shm") for name in ("a", "b"))]
    reaches(members[0], "a", "b")
    members[0].start("put_many", first=1, last=100_000)
    until(lambda: members[1].call("get")["version"] > 2)
    used = {path for process in members for path in opened(process.pid)}
    sockets = {name for process in members for name in listening(process.pid)}
    assert any(path.startswith("/memfd:") for path in used)
    assert sockets
    for process in members:
        process.signal(signal.SIGKILL)
    for process in members:
        process.wait()
    rings = {str(path) for path in tmp_path.rglob("*")}
    # What was there before (a library of a checkout under /tmp) is nobody's leaving.
    left = {path for path in used if path.startswith(("/dev/shm", "/tmp")) and os.path.exists(path) and os.stat(path).st_mtime > began}
    assert not left - rings
    assert not sockets & set(unix_names().values())


def test_the_ring_of_a_killed_process_is_readable(
    member: Callable[..., Process], settings: dict[str, Any], run_python: Callable[..., Any]
) -> None:
    trainer = member("trainer")
    generator = member("generator", name="gen", config={"silent_after_s": 10.0})
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    generator.signal(signal.SIGSTOP)
    trainer.start("put", version=2)
    until(lambda: trainer.call("links"))
    trainer.kill()
    generator.kill()
    script = "from wtransport.cli.main import app; app()"
    text = f"import sys; sys.argv[1:] = {['trace', 'show', str(settings['recorder_dir'])]!r}\n{script}"
    shown = run_python(text, env={"COLUMNS": "200"})
    assert shown.returncode == 0, shown.stderr
    assert "trainer-0" in shown.stdout
    assert "gen" in shown.stdout
    assert "put" in shown.stdout.lower()
    assert "killed" in shown.stdout.lower() or "gone" in shown.stdout.lower() or "dead" in shown.stdout.lower(), shown.stdout


def test_a_held_gil_makes_nobody_lost(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    generator = member("generator", name="gen")
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    before = incarnations(trainer)
    busy = generator.start("block", where="loop", how="gil", seconds=3.0)
    receipt = trainer.call("put", version=2)
    assert outcome(receipt, "gen") in ("delivered", "behind"), receipt
    generator.result(busy)
    assert generator.call("get", version=2)["values"] == [2.0]
    busy = trainer.start("block", where="loop", how="gil", seconds=3.0)
    trainer.result(busy)
    assert outcome(trainer.call("put", version=3), "gen") == "delivered"
    assert incarnations(trainer) == before
    assert "lost" not in kinds(trainer, "gen") + kinds(generator, "trainer-0")
    assert {"stalled", "going on"} <= set(kinds(trainer, "gen"))


def test_an_excluded_generator_keeps_its_version_and_catches_up_once_admitted(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    good = member("generator", name="good")
    out = member("generator", name="out")
    reaches(trainer, "good", "out")
    trainer.call("put", version=1)
    trainer.call("exclude", name="out", reason="too slow")
    until(lambda: "out" not in incarnations(trainer), what="excluded")
    receipt = trainer.call("put", version=2)
    assert outcome(receipt, "good") == "delivered"
    assert receipt["outcomes"].get("out", {"outcome": "excluded"})["outcome"] == "excluded"
    assert out.call("get")["values"] == [1.0]
    time.sleep(0.5)  # it tries to come back meanwhile, and is not let in
    assert "out" not in incarnations(trainer)
    good.call("admit", name="out")
    assert out.call("get", version=2)["values"] == [2.0]
    reaches(trainer, "out")
    assert outcome(trainer.call("put", version=3), "out") == "delivered"


def test_a_trainer_that_hosts_the_coordinator_restarts_and_its_first_puts_hold(member: Callable[..., Process]) -> None:
    """Generators of the job before come back in the middle of the first puts of the new trainer, and with an older term."""
    first = member("trainer")
    generators = [member("generator", name=f"gen-{index}", bind=BIG) for index in range(2)]
    reaches(first, "gen-0", "gen-1")
    assert outcome(first.call("put", version=5, **BIG), "gen-0") == "delivered"
    first.kill()
    second = member("trainer")
    counted = second.call("put_many", first=6, last=40, **BIG)
    assert not counted["lost"], counted
    reaches(second, "gen-0", "gen-1")
    receipt = second.call("put", version=41, **BIG)
    assert {name: item["outcome"] for name, item in receipt["outcomes"].items()} == {"gen-0": "delivered", "gen-1": "delivered"}
    for generator in generators:
        assert generator.call("get", version=41)["values"] == [41.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_granted_to_a_dead_writer_are_abandoned_for_fresh_ones(
    start: Callable[..., Process], member: Callable[..., Process], url: str, backend: str
) -> None:
    """P7: a writer that holds credit, and one that is in the middle of a write, is stopped, fenced, and woken too late."""
    start().call("serve", url=url, config={})
    generator = member("generator", name="gen", backend=backend, bind=BIG)
    old: list[Process] = []
    for version in range(1, 4):
        trainer = member("trainer", name="trainer", backend=backend)
        reaches(trainer, "gen")
        receipt = trainer.call("put", version=10 * version, **BIG)
        assert outcome(receipt, "gen") == "delivered", receipt
        assert generator.call("get", version=10 * version)["values"] == [10.0 * version]
        trainer.start("put", version=10 * version + 1, **BIG)
        time.sleep(0.02)
        trainer.signal(signal.SIGSTOP)
        old.append(trainer)
        until(lambda: "trainer" not in incarnations(generator), what="the stopped writer is lost")
    last = member("trainer", name="trainer", backend=backend)
    reaches(last, "gen")
    for trainer in old:
        trainer.signal(signal.SIGCONT)
    for version in range(100, 106):
        receipt = last.call("put", version=version, **BIG)
        assert outcome(receipt, "gen") == "delivered", receipt
        assert generator.call("get", version=version)["values"] == [float(version)]
    for trainer in old:
        # A stale publisher does not take the place of who replaced it.
        until(lambda trainer=trainer: failure(trainer, "put", version=1000) == "FencedError", what="the old one is told")
    assert outcome(last.call("put", version=106, **BIG), "gen") == "delivered"
