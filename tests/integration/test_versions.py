"""Which versions may be put, and what a refused one costs: nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
from tests.integration.conftest import linked, same

if TYPE_CHECKING:
    from collections.abc import Callable


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((1000,), float(value)), "b": torch.full((3, 5), float(value), dtype=torch.bfloat16)}


async def pair(job: Callable[..., Any]) -> tuple[wtransport.Transport, wtransport.Transport]:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    return trainer, generator


async def test_a_version_must_rise(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    await trainer.put(weights(5), 5)
    with pytest.raises(wtransport.VersionError, match="4") as caught:
        await trainer.put(weights(4), 4)
    assert caught.value.version == 4
    with await generator.get() as update:
        assert update.version == 5


async def test_the_same_version_with_the_same_bytes_is_a_noop(job: Callable[..., Any]) -> None:
    trainer, _ = await pair(job)
    await trainer.put(weights(5), 5)
    receipt = await trainer.put(weights(5), 5)
    assert receipt.noop
    with pytest.raises(wtransport.VersionError, match="other bytes"):
        await trainer.put(weights(6), 5)


async def test_rewind_is_the_only_way_down(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    await trainer.put(weights(9), 9)
    receipt = await trainer.put(weights(2), 2, rewind=True)
    assert receipt.delivered == ("gen",), receipt
    with await generator.get() as update:
        assert update.version == 2
        assert same(update.tensors, weights(2))
    assert (await trainer.put(weights(3), 3)).delivered == ("gen",)


async def test_nonsense_versions_are_refused_before_anything_moves(job: Callable[..., Any]) -> None:
    trainer, _ = await pair(job)
    for version in (-1, 1.5, "1", True, None, 2**63):
        with pytest.raises(wtransport.ConfigError):
            await trainer.put(weights(1), version)
    assert (await trainer.put(weights(1), 1)).delivered == ("gen",)


async def test_a_trainer_cannot_get_and_a_generator_cannot_put(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    with pytest.raises(wtransport.UnsupportedError):
        await trainer.get()
    with pytest.raises(wtransport.UnsupportedError):
        await generator.put(weights(1), 1)


async def test_names_that_do_not_fit_are_told_to_both_sides(job: Callable[..., Any]) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind({"a": torch.zeros(1000), "c": torch.zeros(2)})
    await linked(trainer)
    receipt = await trainer.put(weights(1), 1)
    assert receipt.outcomes["gen"].name == "excluded"
    assert "c" in receipt.outcomes["gen"].reason
    with pytest.raises(wtransport.ManifestMismatchError, match="c"):
        await generator.get(timeout_s=5)
    await generator.bind(weights(0))
    assert (await trainer.put(weights(2), 2)).delivered == ("gen",)


@pytest.mark.parametrize("wanted", [torch.zeros(999), torch.zeros(1000, dtype=torch.float64), torch.zeros(10, 100)])
async def test_a_shape_or_dtype_that_differs_is_never_cast_or_broadcast(job: Callable[..., Any], wanted: torch.Tensor) -> None:
    trainer = await job("trainer")
    generator = await job("generator", name="gen")
    await generator.bind(weights(0) | {"a": wanted})
    await linked(trainer)
    receipt = await trainer.put(weights(1), 1)
    assert receipt.outcomes["gen"].name == "excluded"


async def test_cancelling_a_put_withdraws_its_version(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    await trainer.put(weights(1), 1)
    putting = asyncio.ensure_future(trainer.put(weights(2), 2))
    await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    receipt = await trainer.put(weights(3), 3)
    assert receipt.delivered == ("gen",), receipt
    with await generator.get(3, timeout_s=10) as update:
        assert same(update.tensors, weights(3))


async def test_cancelling_a_handle_stops_the_wait_only(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    handle = trainer.put_nowait(weights(1), 1, snapshot=True)

    async def wait() -> wtransport.Receipt:
        return await handle

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await handle).version == 1
    with await generator.get(1, timeout_s=10) as update:
        assert same(update.tensors, weights(1))


async def test_a_source_that_changes_under_put_nowait_fails_the_version(job: Callable[..., Any]) -> None:
    trainer, generator = await pair(job)
    await trainer.put(weights(1), 1)
    source = weights(2)
    handle = trainer.put_nowait(source, 2)
    source["a"].add_(1.0)
    source["b"].add_(1.0)
    failure = None
    try:
        await handle
    except wtransport.IntegrityError as error:
        failure = error
    if failure is None:
        # The write was over before the first byte was read: then the version is the changed weights, whole.
        with await generator.get(2) as update:
            assert same(update.tensors, weights(3))
        return
    assert isinstance(failure, wtransport.SourceChangedError)
    assert failure.tensor in ("a", "b")
    assert failure.version == 2
    with await generator.get() as update:
        assert update.version == 1
        assert same(update.tensors, weights(1))


async def test_a_withdrawn_handle_says_who_withdrew(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 5.0}
    trainer, generator = await job("trainer", config=config), await job("generator", name="gen", config=config)
    await generator.bind(weights(0))
    await linked(trainer)
    await trainer.put(weights(1), 1)
    first: wtransport.Update = await generator.get()
    await trainer.put(weights(2), 2)
    handle = trainer.put_nowait(weights(3), 3, snapshot=True)
    await handle.source_free
    handle.cancel()
    with pytest.raises(wtransport.WithdrawnError) as caught:
        await handle
    assert caught.value.by is not None
    assert "rank 0" in caught.value.by
    first.release()
    assert (await trainer.put(weights(4), 4)).delivered == ("gen",)


async def test_put_nowait_without_verification_needs_a_snapshot(job: Callable[..., Any]) -> None:
    trainer = await job("trainer", config={"verify": "off"})
    with pytest.raises(wtransport.ConfigError, match="snapshot"):
        trainer.put_nowait(weights(1), 1)
    assert (await trainer.put_nowait(weights(1), 1, snapshot=True)).version == 1
