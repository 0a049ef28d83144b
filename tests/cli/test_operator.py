"""``wtransport members``, ``exclude``, ``admit`` and ``replace`` against a real job."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import wtransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SECRET = "a secret of this job"


async def run(*arguments: str, secret: str = SECRET) -> tuple[int, str, str]:
    """Run the command; returns its exit status and what it printed."""
    env = {"WTRANSPORT_SECRET": secret, "WTRANSPORT_CONNECT_TIMEOUT_S": "5", "PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wtransport", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def states(url: str) -> dict[str, dict[str, Any]]:
    status, out, err = await run("members", url, "--json")
    assert status == 0, err
    return {item["name"]: item for item in json.loads(out)["members"]}


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[tuple[str, wtransport.Transport, wtransport.Transport]]:
    """A trainer and a generator that holds version 3."""
    url = f"unix://@wtransport-test-{secrets.token_hex(8)}"
    config = wtransport.TransportConfig(secret=SECRET, recorder_dir=tmp_path, connect_timeout_s=20.0)
    async with (
        wtransport.connect(url, role="trainer", config=config) as trainer,
        wtransport.connect(url, role="generator", name="gen-0", config=config) as generator,
    ):
        await generator.bind({"w": torch.zeros(8)})
        await trainer.put({"w": torch.ones(8)}, 3)
        assert await generator.ready() == 3
        yield url, trainer, generator


async def test_members_as_json_and_as_a_table(job: tuple[str, Any, Any]) -> None:
    url, _, _ = job
    found = await states(url)
    assert set(found) == {"trainer-0", "gen-0"}
    assert (found["gen-0"]["state"], found["gen-0"]["version"], found["gen-0"]["lag"]) == ("live", 3, 0)
    status, out, _ = await run("members", url)
    assert status == 0
    assert [line.split()[:4] for line in out.splitlines() if "gen-0" in line] == [["gen-0", "generator", "0/1", "live"]]


async def test_exclude_admit_and_replace(job: tuple[str, Any, Any]) -> None:
    url, trainer, _ = job
    status, out, err = await run("exclude", url, "gen-0", "--reason", "its host is being drained")
    assert (status, out) == (0, "gen-0 is excluded\n"), err
    gone = (await states(url))["gen-0"]
    assert (gone["state"], gone["cause"]) == ("excluded", "its host is being drained")
    assert (await trainer.put({"w": torch.ones(8)}, 4)).delivered == ()
    status, out, _ = await run("admit", url, "gen-0", "--json")
    assert (status, json.loads(out)) == (0, {"member": "gen-0", "done": "admitted"})
    async with asyncio.timeout(10):
        while (await states(url))["gen-0"]["state"] != "live":
            await asyncio.sleep(0.05)
    status, out, _ = await run("replace", url, "gen-0", "gen-1", "--json")
    assert (status, json.loads(out)["done"]) == (0, "replaced by gen-1")
    assert (await states(url))["gen-0"]["cause"] == "replaced by gen-1"


async def test_what_cannot_be_done_is_said_and_fails(job: tuple[str, Any, Any]) -> None:
    url, _, _ = job
    status, out, _ = await run("exclude", url, "nobody", "--json")
    assert status == 1
    assert json.loads(out)["error"] == "ConfigError"
    assert "no member is called nobody" in json.loads(out)["message"]
    status, out, err = await run("admit", url, "gen-0")
    assert (status, out) == (1, "")
    assert "gen-0 is not excluded" in err
    status, _, err = await run("members", url, secret="another")
    assert status == 1
    assert "AuthError" in err
    assert "Traceback" not in err
