"""What integration tests share: a job's address, settings, and members of this process on their own service threads."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport
import wtransport.transport
from wtransport.testing.cluster.cluster import WAIT_S, Cluster, Process, until
from wtransport.testing.cluster.zygote import Zygote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@pytest.fixture
def url() -> str:
    """An address that no other test uses, and that leaves no file behind."""
    return f"unix://@wtransport-test-{secrets.token_hex(8)}"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings that keep a test's waits short and its flight rings in its own folder."""
    return {"recorder_dir": tmp_path / "rings", "connect_timeout_s": 20.0, "stall_timeout_s": 10.0, "copy_threads": 1}


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks the members that have a process of their own."""
    started = Zygote(str(Path(__file__).parents[2]))
    yield started
    started.close()


@pytest.fixture
def cluster(zygote: Zygote, url: str, settings: dict[str, Any]) -> Iterator[Cluster]:
    """One job of real processes; all are killed after the test."""
    with Cluster(url, config=settings | {"recorder_dir": str(settings["recorder_dir"])}, zygote=zygote) as made:
        yield made


@pytest.fixture
def start(cluster: Cluster) -> Callable[..., Process]:
    """``start()``: a process that waits for commands."""
    return cluster.start


@pytest.fixture
def member(cluster: Cluster) -> Callable[..., Process]:
    """``member("generator", name=..., config={...}, bind={...})``: a member of the job in a process of its own."""
    return cluster.member


@pytest.fixture
async def job(url: str, settings: dict[str, Any]) -> AsyncIterator[Callable[..., Any]]:
    """``await job("trainer", rank=..., config={...})`` joins one job; all members are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def join(role: str, *, config: dict[str, Any] | None = None, **arguments: Any) -> wtransport.Transport:
            chosen = wtransport.TransportConfig(**(settings | (config or {})))
            member = wtransport.connect(url, role=role, config=chosen, **arguments)  # type: ignore[arg-type]
            return await stack.enter_async_context(member)

        yield join


async def linked(trainer: wtransport.Transport, generators: int = 1) -> None:
    """Wait until the trainer has a data link to that many generators."""
    async with asyncio.timeout(20):
        while len([link for link in await trainer.describe() if link.direction == "to"]) < generators:
            await asyncio.sleep(0.01)


def reaches(trainer: Process, *names: str, timeout_s: float = WAIT_S) -> None:
    """Wait until the trainer's process has a data link to each of these generators."""
    until(lambda: set(names) <= {peer for peer, direction, _ in trainer.call("links") if direction == "to"}, timeout_s, f"links to {names}")


def outcome(receipt: dict[str, Any], name: str) -> str:
    """What became of the put at that generator."""
    return str(receipt["outcomes"][name]["outcome"])


def same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same names, dtypes, shapes and bytes."""
    if tensors.keys() != expected.keys():
        return False
    return all(alike(tensors[name], value) for name, value in expected.items())


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    return one.dtype == other.dtype and one.shape == other.shape and raw(one) == raw(other)


def raw(tensor: torch.Tensor) -> bytes:
    """The tensor's elements, row by row, as bytes: NaN payloads and signs of zero count."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
