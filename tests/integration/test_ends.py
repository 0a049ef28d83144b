"""Every wait ends with its cause: members that are replaced, transports that close, links that fail once, opens that are given up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, outcome, reaches, same
from wtransport.memory import landing_slot
from wtransport.testing.cluster.cluster import PeerError
from wtransport.waiting import shielded

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.testing.cluster.cluster import Process


def weights(value: float, numel: int = 1000) -> dict[str, torch.Tensor]:
    return {"a": torch.full((numel,), float(value)), "b": torch.full((3, 5), float(value))}


async def test_a_follower_whose_name_another_took_is_told(job: Callable[..., Any]) -> None:
    await job("trainer")
    first = await job("generator", name="gen")
    await first.bind(weights(0))
    follower = first.updates()
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.1)
    await job("generator", name="gen", takeover=True)
    for _ in range(2):
        with pytest.raises(wtransport.FencedError, match=r"took this member's place.*second job"):
            await asyncio.wait_for(waiting, 5)
        waiting = asyncio.ensure_future(first.get())
    with pytest.raises(wtransport.FencedError):
        await waiting


async def test_code_without_a_loop_follows_version_after_version(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    seen: list[int] = []

    def follow() -> None:
        for update in generator.blocking.updates():
            with update:
                seen.append(update.version)
        seen.append(-1)

    thread = threading.Thread(target=follow)
    thread.start()
    for version in (1, 2, 3):
        await trainer.put(weights(version), version)
        async with asyncio.timeout(5):
            while seen[-1:] != [version]:
                await asyncio.sleep(0.01)
    links = await asyncio.to_thread(generator.blocking.describe)
    assert [link.peer for link in links] == ["trainer-0"]
    await generator.close()
    await asyncio.to_thread(thread.join, 5)
    assert seen == [1, 2, 3, -1]


async def test_puts_keep_the_order_of_their_calls(job: Callable[..., Any]) -> None:
    """The first one copies its weights first, which takes longer than all of the second."""
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0, 4 << 20))
    await linked(trainer)
    handles = [trainer.put_nowait(weights(1, 4 << 20), 1, snapshot=True), trainer.put_nowait(weights(2, 4 << 20), 2)]
    for receipt in await asyncio.gather(*handles):
        assert receipt.outcomes["gen"].name in ("delivered", "overtaken"), receipt
    with await generator.get(2) as update:
        assert same(update.tensors, weights(2, 4 << 20))


async def test_a_generator_cannot_put_in_the_background_either(job: Callable[..., Any]) -> None:
    await job("trainer")
    generator = await job("generator", name="gen")
    with pytest.raises(wtransport.UnsupportedError, match="only trainers put"):
        generator.put_nowait(weights(1), 1)


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.01, 0.03])
async def test_a_put_that_copies_its_weights_as_the_transport_closes_ends(job: Callable[..., Any], delay_s: float) -> None:
    trainer = await job("trainer")
    handle = trainer.put_nowait(weights(1, 4 << 20), 1, snapshot=True)
    await asyncio.sleep(delay_s)
    await trainer.close()
    (result,) = await asyncio.wait_for(asyncio.gather(handle, return_exceptions=True), 5)
    assert isinstance(result, (wtransport.Receipt, wtransport.ClosedError)), result


async def test_a_request_that_is_pending_as_the_transport_closes_ends(job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    await job("trainer")
    generator = await job("generator", name="gen")
    monkeypatch.setattr(generator._service._client, "send", lambda message: True)  # a coordinator that never answers
    asking = asyncio.ensure_future(generator.exclude("gen", "a test"))
    await asyncio.sleep(0.1)
    await generator.close()
    with pytest.raises(wtransport.ClosedError, match="before the coordinator answered"):
        await asyncio.wait_for(asking, 5)


async def test_a_data_endpoint_that_fails_once_is_opened_again_at_once(job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = await job("trainer", backend="shm")
    backend = trainer._service.context.backends["shm"]
    connect, failures = backend.connect, []

    async def failing(*args: Any, **kwargs: Any) -> Any:
        if not failures:
            failures.append("once")
            raise wtransport.PeerLostError("a test")
        return await connect(*args, **kwargs)

    monkeypatch.setattr(backend, "connect", failing)
    generator = await job("generator", name="gen", backend="shm")
    await generator.bind(weights(0))
    async with asyncio.timeout(5):  # connect_timeout_s is 20
        await linked(trainer)
    assert failures
    assert (await trainer.put(weights(1), 1)).delivered == ("gen",)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.1])
async def test_an_open_that_is_given_up_leaves_nothing(url: str, settings: dict[str, Any], after_s: float) -> None:
    transport = wtransport.connect(url, role="generator", config=wtransport.TransportConfig(**settings))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(transport.open(), after_s)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wtransport-")]


async def test_a_close_that_is_given_up_goes_on(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    closing = asyncio.ensure_future(generator.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(5):
        while any(thread.name == "wtransport-gen" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    assert {member.name for member in await trainer.members()} == {"trainer-0"}


async def test_a_slot_whose_memory_cannot_be_had_at_first_comes_back(
    start: Callable[..., Process], member: Callable[..., Process], job: Callable[..., Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer dies with a grant: its slot needs fresh memory, and for a while there is none."""
    start().call("serve", url=url, config={})
    trainer = member("trainer")
    generator = await job("generator", name="gen")
    await generator.bind({f"layer.{index}": torch.zeros(1024) for index in range(4)})
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    real, failures = landing_slot.map_region, ["first", "second"]

    def short(nbytes: int) -> Any:
        if failures:
            failures.pop()
            raise wtransport.RegistrationError("a test: no memory")
        return real(nbytes)

    monkeypatch.setattr(landing_slot, "map_region", short)
    kinds: list[str] = []

    async def listen() -> None:
        async for event in generator.events():
            kinds.append(event.kind)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await asyncio.to_thread(trainer.kill)
    async with asyncio.timeout(10):
        while failures or "memory" not in kinds:
            await asyncio.sleep(0.02)
    second = await asyncio.to_thread(member, "trainer")
    await asyncio.to_thread(reaches, second, "gen")
    for version in (2, 3, 4):
        receipt = await asyncio.to_thread(second.call, "put", version=version)
        if outcome(receipt, "gen") != "behind":
            assert outcome(receipt, "gen") == "delivered", receipt
    with await generator.get(4, timeout_s=10) as update:
        assert update.tensors["layer.0"].eq(4).all()
    listening.cancel()


def test_an_error_that_comes_after_its_wait_was_cancelled_is_nobodys_news() -> None:
    reported: list[str] = []

    async def wait_in_vain() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        future: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def wait(late: concurrent.futures.Future[None]) -> None:
            await shielded(late)

        task = asyncio.create_task(wait(future))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        future.set_exception(wtransport.UnavailableError("a test"))
        await asyncio.sleep(0.01)
        del task, future
        gc.collect()

    asyncio.run(wait_in_vain())
    assert reported == []


async def test_the_blocking_adapter_says_that_a_loop_runs_here(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    with pytest.raises(wtransport.UnsupportedError, match="event loop that runs here"):
        trainer.blocking.put(weights(1), 1)


def test_a_put_without_a_coordinator_says_why_there_is_none(
    start: Callable[..., Process], member: Callable[..., Process], url: str
) -> None:
    server = start()
    server.call("serve", url=url, config={})
    trainer = member("trainer", config={"stall_timeout_s": 2.0})
    trainer.call("put", version=1)
    server.kill()
    with pytest.raises(PeerError, match=r"did not admit the version in time.*the coordinator is gone"):
        trainer.call("put", version=2)
