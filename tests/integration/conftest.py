"""What integration tests share: a job's address, settings, and members of this process on their own service threads."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import wtransport
import wtransport.transport


@pytest.fixture
def url() -> str:
    """An address that no other test uses, and that leaves no file behind."""
    return f"unix://@wtransport-test-{secrets.token_hex(8)}"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings that keep a test's waits short and its flight rings in its own folder."""
    return {"recorder_dir": tmp_path / "rings", "connect_timeout_s": 20.0, "stall_timeout_s": 10.0, "copy_threads": 1}


@pytest.fixture
async def job(url: str, settings: dict[str, Any]) -> AsyncIterator[Callable[..., Any]]:
    """``await job("trainer", rank=..., config={...})``: a member of one job; all are closed after the test."""
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


def same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether both hold the same names, dtypes, shapes and bytes."""
    if tensors.keys() != expected.keys():
        return False
    return all(
        tensors[name].dtype == value.dtype and tensors[name].shape == value.shape and raw(tensors[name]) == raw(value)
        for name, value in expected.items()
    )


def raw(tensor: torch.Tensor) -> bytes:
    """The tensor's elements, row by row, as bytes: NaN payloads and signs of zero count."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
