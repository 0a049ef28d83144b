"""What a new user gets wrong, or does in another order, has an answer that says so."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import wtransport
from tests.integration.conftest import linked, same

if TYPE_CHECKING:
    from collections.abc import Callable

URL = f"unix://@wtransport-misuse-{secrets.token_hex(8)}"


def weights(value: float, name: str = "w") -> dict[str, torch.Tensor]:
    return {name: torch.full((1000,), float(value))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": None},
        {"role": "watcher"},
        {"name": 5},
        {"name": ""},
        {"name": "a\n\x1b[31m"},
        {"name": "x" * 500},
        {"rank": "0"},
        {"rank": True},
        {"rank": 3},
        {"world_size": 0},
        {"group": 7},
        {"group": "g"},
        {"backend": "foo"},
        {"backend": "nccl"},
        {"config": {}},
    ],
)
def test_a_member_that_cannot_be_is_refused_before_it_starts(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"url": URL, "role": "trainer"} | wrong
    with pytest.raises(wtransport.ConfigError):
        wtransport.connect(arguments.pop("url"), **arguments)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": 5},
        {"host": 5},
        {"streams": "2"},
        {"streams": None},
        {"copy_threads": 1.5},
        {"bucket_nbytes": 5000.5},
        {"connect_timeout_s": True},
        {"stall_timeout_s": "x"},
        {"verify": "maybe"},
        {"recorder_records": 10**12},
    ],
)
def test_a_setting_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(wtransport.ConfigError, match=next(iter(wrong))):
        wtransport.TransportConfig(**wrong)


def test_a_folder_may_be_given_as_text() -> None:
    assert wtransport.TransportConfig(recorder_dir="/tmp/rings").recorder_dir is not None  # type: ignore[arg-type]


async def test_versions_may_be_numpys_integers_and_waits_are_checked(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    assert (await trainer.put(weights(7), np.int64(7))).version == 7
    for wrong in ({"version": "a"}, {"version": -1}, {"timeout_s": "x"}, {"timeout_s": float("nan")}, {"timeout_s": 0}):
        with pytest.raises(wtransport.ConfigError):
            await generator.get(**wrong)
    with await generator.get(np.int64(7)) as update:
        assert update.version == 7


async def test_a_put_after_a_rebind_is_judged_by_its_own_weights(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 0.2}
    trainer, generator = await job("trainer", config=config), await job("generator", name="gen", config=config)
    await generator.bind({"a": torch.ones(3)})
    await linked(trainer)
    assert (await trainer.put({"a": torch.ones(3)}, 1)).delivered == ("gen",)
    many = {f"layer.{index}.w": torch.full((3,), float(index)) for index in range(20_000)}
    await generator.bind(many)
    receipt = await trainer.put(many, 2)
    assert receipt.delivered == ("gen",), receipt
    with await generator.get(2, timeout_s=20) as update:
        assert same(update.tensors, many)


async def test_a_follower_may_rebind_before_the_trainer_changes(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0, "a"))
    await linked(trainer)
    await trainer.put(weights(1, "a"), 1)
    await generator.bind(weights(0, "b"))
    updates = generator.updates()
    following = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0.3)
    assert not following.done()
    assert (await trainer.put(weights(2, "b"), 2)).delivered == ("gen",)
    with await following as update:
        assert same(update.tensors, weights(2, "b"))
    await updates.aclose()


async def test_a_binding_that_fits_no_put_is_told_by_the_put(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0, "a"))
    await linked(trainer)
    await trainer.put(weights(1, "a"), 1)
    await generator.bind(weights(0, "b"))
    updates = generator.updates()
    following = asyncio.ensure_future(anext(updates))
    receipt = await trainer.put(weights(2, "a"), 2)
    assert receipt.outcomes["gen"].name == "excluded"
    with pytest.raises(wtransport.ManifestMismatchError):
        await asyncio.wait_for(following, 10)


async def test_a_kept_tensor_does_not_keep_what_is_held_from_being_read(job: Callable[..., Any]) -> None:
    config = {"credit_timeout_s": 0.1}
    trainer, generator = await job("trainer", config=config), await job("generator", name="gen", config=config)
    await generator.bind(weights(0))
    await linked(trainer)
    await trainer.put(weights(1), 1)
    with await generator.get() as update:
        kept = update.tensors["w"]
    for version in (2, 3, 4):
        await trainer.put(weights(version), version)
    with await generator.get(timeout_s=5) as update:
        assert update.version == 2
    with pytest.raises(wtransport.DeadlineError, match="referenced"):
        await generator.get(4, timeout_s=0.3)
    assert bool((kept == 1.0).all())


async def test_only_live_members_other_than_the_host_can_be_excluded(job: Callable[..., Any]) -> None:
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    await generator.bind(weights(0))
    await linked(trainer)
    with pytest.raises(wtransport.ConfigError, match="hosts the coordinator"):
        await generator.exclude("trainer-0", "because")
    with pytest.raises(wtransport.ConfigError, match="nobody"):
        await trainer.exclude("nobody", "because")
    assert (await trainer.put(weights(1), 1)).delivered == ("gen",)


def test_a_transport_that_is_never_closed_is_one_warning(run_python: Callable[..., Any], url: str, settings: dict[str, Any]) -> None:
    text = f"""
    import asyncio, wtransport
    async def main():
        config = wtransport.TransportConfig(recorder_dir={str(settings["recorder_dir"])!r})
        transport = wtransport.connect({url!r}, role="trainer", config=config)
        await transport.open()
    asyncio.run(main())
    """
    done = run_python(text, env={"PYTHONWARNINGS": "default"})
    assert done.returncode == 0
    assert "nanobind" not in done.stderr, done.stderr
    assert done.stderr.count("was never closed") == 1, done.stderr


async def test_memory_that_cannot_be_had_is_said_at_bind(job: Callable[..., Any]) -> None:
    """A generator that wants more than the machine can map goes on without a binding."""
    trainer, generator = await job("trainer"), await job("generator", name="gen")
    huge = torch.zeros(1).expand(1 << 57)
    with pytest.raises(wtransport.RegistrationError, match="cannot be mapped"):
        await generator.bind({"a": huge})
    await generator.bind(weights(0))
    await linked(trainer)
    assert (await trainer.put(weights(1), 1)).delivered == ("gen",)


def test_a_huge_argument_is_not_repeated_whole() -> None:
    with pytest.raises(wtransport.ConfigError) as caught:
        wtransport.connect("tcp://127.0.0.1:1", role="generator", backend="x" * 100_000)
    assert len(str(caught.value)) < 4000
    assert "characters) ..." in str(caught.value)
