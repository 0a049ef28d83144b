"""Rendezvous, the coordinator's life, addresses, forks, and the ends of a transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, outcome, reaches, same
from wtransport.testing.cluster.cluster import PeerError, Process, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Script

QUICK = {"rebuild_s": 2.0}


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((1000,), float(value)), "b": torch.full((3, 5), float(value), dtype=torch.bfloat16)}


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def loopback_v6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


@pytest.fixture
def served(start_python: Callable[..., Script]) -> Callable[[str], tuple[Script, str]]:
    """``served(url)``: ``wtransport serve`` in a process of its own; returns it and the bound address."""

    def serve(url: str) -> tuple[Script, str]:
        text = f"import sys; sys.argv[1:] = ['serve', {url!r}]\nfrom wtransport.cli.main import app; app()"
        script = start_python(text, env={"WTRANSPORT_REBUILD_S": "2.0"})
        return script, script.line("", 30)

    return serve


def test_members_start_in_any_order(start: Callable[..., Process], url: str, settings: dict[str, Any]) -> None:
    config = settings | {"recorder_dir": str(settings["recorder_dir"])}
    generators = {name: start() for name in ("a", "b")}
    opening = {name: process.start("open", url=url, role="generator", name=name, config=config) for name, process in generators.items()}
    assert not any(process.done(opening[name]) for name, process in generators.items())
    trainer = start()
    trainer.call("open", url=url, role="trainer", config=config)
    for name, process in generators.items():
        process.result(opening[name])
        process.call("bind")
    reaches(trainer, *generators)
    receipt = trainer.call("put", version=1)
    assert {outcome(receipt, name) for name in generators} == {"delivered"}


def test_rank_0_leaves_the_address_to_a_coordinator_that_is_served_later(
    served: Callable[[str], tuple[Script, str]], start: Callable[..., Process], url: str, settings: dict[str, Any]
) -> None:
    trainer = start()
    config = settings | {"recorder_dir": str(settings["recorder_dir"]), "hosts_coordinator": False}
    opening = trainer.start("open", url=url, role="trainer", config=config)
    assert not trainer.done(opening)
    host, _ = served(url)
    trainer.result(opening)
    host.send_signal(signal.SIGKILL)
    until(lambda: [event for event in trainer.call("events") if event["kind"] == "coordinator lost"], what="the event")


async def test_waiting_for_nobody_ends_and_says_what_was_tried(settings: dict[str, Any]) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    config = wtransport.TransportConfig(**settings | {"connect_timeout_s": 0.5})
    with pytest.raises(wtransport.ConnectError, match=r"0\.5 s; tried tcp://127\.0\.0\.1:\d+ \(\d+ times, last: ECONNREFUSED"):
        async with wtransport.connect(url, role="generator", config=config):
            pass
    with pytest.raises(wtransport.ConnectError):
        await wtransport.connect(url, role="trainer", rank=1, world_size=2, config=config).open()


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_a_served_coordinator_that_is_killed_and_restarted_costs_no_version(
    served: Callable[[str], tuple[Script, str]], member: Callable[..., Process], backend: str
) -> None:
    host, url = served("tcp://127.0.0.1:0")
    trainer = member("trainer", at=url, backend=backend, config=QUICK)
    generator = member("generator", at=url, name="gen", backend=backend, config=QUICK)
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"
    host.send_signal(signal.SIGKILL)
    until(lambda: [event for event in trainer.call("events") if event["kind"] == "coordinator lost"], what="the event")
    assert generator.call("get")["values"] == [1.0]
    putting = trainer.start("put", version=2)
    served(url)
    assert outcome(trainer.result(putting), "gen") == "delivered"
    late = member("generator", at=url, name="late", backend=backend, config=QUICK)
    assert late.call("get")["values"] == [2.0]
    reaches(trainer, "gen", "late")
    receipt = trainer.call("put", version=3)
    assert {outcome(receipt, name) for name in ("gen", "late")} == {"delivered"}, receipt


def test_a_committed_version_outlives_trainer_and_coordinator(
    served: Callable[[str], tuple[Script, str]], member: Callable[..., Process]
) -> None:
    host, url = served("tcp://127.0.0.1:0")
    trainer = member("trainer", at=url, config=QUICK)
    first = member("generator", at=url, name="first", config=QUICK)
    reaches(trainer, "first")
    trainer.call("put", version=4)
    trainer.kill()
    host.send_signal(signal.SIGKILL)
    until(lambda: [event for event in first.call("events") if event["kind"] == "coordinator lost"], what="the event")
    served(url)
    late = member("generator", at=url, name="late", config=QUICK)
    assert late.call("get", version=4)["values"] == [4.0]


async def test_a_wrong_secret_is_an_authentication_error(job: Callable[..., Any]) -> None:
    await job("trainer", config={"secret": "right"})
    with pytest.raises(wtransport.AuthError):
        await job("generator", name="gen", config={"secret": "wrong"})
    assert await job("generator", name="gen", config={"secret": "right"})


def test_two_jobs_on_one_host_do_not_meet(member: Callable[..., Process], url: str) -> None:
    urls = [url, url + "-other"]
    trainers = [member("trainer", at=at) for at in urls]
    generators = [member("generator", at=at, name="gen") for at in urls]
    for trainer in trainers:
        reaches(trainer, "gen")
    for number, trainer in enumerate(trainers, 1):
        assert outcome(trainer.call("put", version=number), "gen") == "delivered"
    for number, generator in enumerate(generators, 1):
        assert generator.call("get")["values"] == [float(number)]
        assert len(generator.call("members")) == 2


def test_two_transports_of_different_jobs_in_one_process(start: Callable[..., Process], url: str, settings: dict[str, Any]) -> None:
    config = settings | {"recorder_dir": str(settings["recorder_dir"])}
    relay, trainer, generator = start(), start(), start()
    trainer.call("open", url=url, role="trainer", config=config)
    relay.call("open", url=url, role="generator", name="relay", config=config, key="in")
    relay.call("open", url=url + "-2", role="trainer", config=config, key="out")
    generator.call("open", url=url + "-2", role="generator", name="gen", config=config)
    relay.call("bind", key="in")
    generator.call("bind")
    reaches(trainer, "relay")
    until(lambda: relay.call("links", key="out"), what="the second job's link")
    assert outcome(trainer.call("put", version=1), "relay") == "delivered"
    assert outcome(relay.call("put", version=9, key="out"), "gen") == "delivered"
    assert relay.call("get", key="in")["values"] == [1.0]
    assert generator.call("get")["values"] == [9.0]
    relay.call("close", key="in")
    assert outcome(relay.call("put", version=10, key="out"), "gen") == "delivered"


@pytest.mark.parametrize("kind", ["tcp", "v6", "localhost", "unix path"])
@pytest.mark.parametrize("backend", ["auto", "tcp"])
async def test_addresses(settings: dict[str, Any], tmp_path: Path, kind: str, backend: str) -> None:
    if kind == "v6" and not loopback_v6():
        pytest.skip("this host has no IPv6 loopback")
    host = {"tcp": "127.0.0.1", "v6": "[::1]", "localhost": "localhost"}.get(kind)
    path = tmp_path / "job.sock"
    url = f"unix://{path}" if host is None else f"tcp://{host}:{free_port('::1' if kind == 'v6' else '127.0.0.1')}"
    config = wtransport.TransportConfig(**settings)
    async with (
        wtransport.connect(url, role="trainer", config=config, backend=backend) as trainer,
        wtransport.connect(url, role="generator", name="gen", config=config, backend=backend) as generator,
    ):
        await generator.bind(weights(0))
        await linked(trainer)
        assert (await trainer.put(weights(1), 1)).delivered == ("gen",)
        with await generator.get() as update:
            assert same(update.tensors, weights(1))
    assert not path.exists()


def test_a_forked_child_owns_nothing(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    generator = member("generator", name="gen")
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    for process in (trainer, generator):
        answer = process.call("fork")
        assert answer["status"] == 0, answer
        assert answer["text"] == "ClosedError", answer
        assert process.call("load", num_workers=2) == list(range(64))
    receipt = trainer.call("put", version=2)
    assert outcome(receipt, "gen") == "delivered", receipt
    assert generator.call("get", version=2)["values"] == [2.0]


@pytest.mark.parametrize("raw", [False, True], ids=["python", "native"])
def test_a_fork_held_open_by_a_child_does_not_hide_the_end_of_its_parent(member: Callable[..., Process], raw: bool) -> None:
    """A child of a killed member must not keep its sockets open: the others would wait for the heartbeat's deadline, or for ever."""
    trainer = member("trainer", config={"silent_after_s": 30.0})
    generator = member("generator", name="gen", config={"silent_after_s": 30.0})
    reaches(trainer, "gen")
    child = generator.call("linger", raw=raw)
    try:
        generator.kill()
        until(lambda: "lost" in {item["state"] for item in trainer.call("members")}, 5.0, "the loss is seen")
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_of_a_killed_trainer_does_not_keep_the_coordinators_address(
    member: Callable[..., Process],
) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    first = member("trainer", at=url)
    generator = member("generator", at=url, name="gen")
    reaches(first, "gen")
    child = first.call("linger")
    try:
        first.kill()
        second = member("trainer", at=url)
        reaches(second, "gen")
        assert outcome(second.call("put", version=1), "gen") == "delivered"
        assert generator.call("get")["values"] == [1.0]
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("who", ["trainer", "generator"])
def test_closing_during_a_put(member: Callable[..., Process], who: str) -> None:
    big = {"numel": 8 << 20}
    trainer = member("trainer", backend="tcp")
    generator = member("generator", name="gen", backend="tcp", bind=big)
    other = member("generator", name="other", backend="tcp", bind=big)
    reaches(trainer, "gen", "other")
    trainer.call("put", version=1, **big)
    putting = trainer.start("put", version=2, **big)
    (trainer if who == "trainer" else generator).call("close")
    if who == "trainer":
        try:
            trainer.result(putting)
        except PeerError as error:
            assert error.kind == "ClosedError"
    else:
        receipt = trainer.result(putting)
        assert outcome(receipt, "other") == "delivered", receipt
        # It may have left before the put had its list of generators.
        assert receipt["outcomes"].get("gen", {"outcome": "lost"})["outcome"] in ("lost", "delivered"), receipt
    got = other.call("get")
    assert got["values"] == [float(got["version"])]


async def test_a_transport_that_is_not_open_says_so(url: str, settings: dict[str, Any]) -> None:
    config = wtransport.TransportConfig(**settings)
    trainer = wtransport.connect(url, role="trainer", config=config)
    for call in (trainer.put(weights(1), 1), trainer.members(), trainer.exclude("a", "b"), trainer.describe()):
        with pytest.raises(wtransport.ClosedError, match="open"):
            await call
    with pytest.raises(wtransport.ClosedError, match="open"):
        trainer.put_nowait(weights(1), 1, snapshot=True)
    await trainer.open()
    with pytest.raises(wtransport.BusyError):
        await trainer.open()
    generator = wtransport.connect(url, role="generator", name="gen", config=config)
    with pytest.raises(wtransport.ClosedError):
        await generator.bind(weights(0))
    await generator.open()
    await generator.bind(weights(0))
    waiting = asyncio.ensure_future(anext(generator.updates()))
    getting = asyncio.ensure_future(generator.get())
    await linked(trainer)
    await generator.close()
    await generator.close()
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(wtransport.ClosedError):
        await getting
    await trainer.close()
    await trainer.close()
    for call in (trainer.put(weights(1), 1), trainer.members(), trainer.admit("a"), generator.get(), generator.bind(weights(0))):
        with pytest.raises(wtransport.ClosedError, match="closed"):
            await call
    with pytest.raises(wtransport.ClosedError):
        await trainer.open()
    assert [event async for event in trainer.events()] == []
    assert [update async for update in generator.updates()] == []


async def test_a_transport_that_never_opened_can_be_closed(url: str, settings: dict[str, Any]) -> None:
    trainer = wtransport.connect(url, role="trainer", config=wtransport.TransportConfig(**settings))
    await trainer.close()
    with pytest.raises(wtransport.ClosedError):
        await trainer.open()


async def test_cancelling_open_leaves_nothing(settings: dict[str, Any], url: str) -> None:
    threads = set(threading.enumerate())
    opening = asyncio.ensure_future(wtransport.connect(url, role="generator", config=wtransport.TransportConfig(**settings)).open())
    await asyncio.sleep(0.1)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not {thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("wtransport")}


def put_under_uvloop(url: str, recorder_dir: str) -> None:
    """Runs in a process of its own: libuv keeps a pipe for the life of the process."""
    import asyncio
    from pathlib import Path

    import torch
    import uvloop

    import wtransport

    async def work() -> None:
        config = wtransport.TransportConfig(recorder_dir=Path(recorder_dir), copy_threads=1)
        async with (
            wtransport.connect(url, role="trainer", config=config) as trainer,
            wtransport.connect(url, role="generator", name="gen", config=config) as generator,
        ):
            await generator.bind({"a": torch.zeros(1000)})
            while not await trainer.describe():
                await asyncio.sleep(0.01)
            receipt = await trainer.put({"a": torch.ones(1000)}, 1)
            async for update in generator.updates():
                with update:
                    print(receipt.delivered, update.version, bool((update.tensors["a"] == 1).all()))
                break

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


def test_the_users_loop_may_be_uvloop(url: str, settings: dict[str, Any], run_python: Callable[..., Any]) -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    done = run_python(put_under_uvloop, url, str(settings["recorder_dir"]))
    assert done.stdout.split("\n")[0] == "('gen',) 1 True", done.stdout + done.stderr


def test_importing_starts_nothing(run_python: Callable[..., Any]) -> None:
    text = """
    import os, sys, threading
    before = dict(os.environ)
    import wtransport
    print(threading.active_count(), len(os.listdir("/proc/self/task")), "torch" in sys.modules, dict(os.environ) == before)
    """
    done = run_python(text)
    assert done.stdout.split() == ["1", "1", "False", "True"], done.stdout + done.stderr
