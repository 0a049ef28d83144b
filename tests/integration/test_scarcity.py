"""Too few descriptors, no home to write to: what is said, and what goes on all the same."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Outcome


async def job(rings: str | None) -> None:
    """A trainer and a generator in one process; prints how far they came."""
    import secrets
    from pathlib import Path

    import torch

    import wtransport

    def weights(value: float) -> dict[str, torch.Tensor]:
        return {f"w{index}": torch.full((100,), value) for index in range(4)}

    config = wtransport.TransportConfig(recorder_dir=None if rings is None else Path(rings), copy_threads=1)
    url = f"unix://@wtransport-test-{secrets.token_hex(8)}"
    try:
        async with (
            wtransport.connect(url, role="trainer", config=config) as trainer,
            wtransport.connect(url, role="generator", name="gen", config=config) as generator,
        ):
            await generator.bind(weights(0.0))
            await trainer.put(weights(1.0), 1, snapshot=True)
            with await generator.get(timeout_s=3.0) as update:
                print("got", update.version)
    except Exception as error:
        print("failed", type(error).__name__, str(error))


async def scarce(rings: str) -> None:
    """Jobs in one process that may open a few more files each time; prints how each ended, and what it left open."""
    import asyncio
    import gc
    import os
    import resource
    import secrets
    from pathlib import Path

    import torch

    import wtransport

    def weights(value: float) -> dict[str, torch.Tensor]:
        return {f"w{index}": torch.full((100,), value) for index in range(4)}

    async def run() -> str:
        config = wtransport.TransportConfig(recorder_dir=Path(rings), copy_threads=1, connect_timeout_s=1.0)
        url = f"unix://@wtransport-test-{secrets.token_hex(8)}"
        async with (
            wtransport.connect(url, role="trainer", config=config) as trainer,
            wtransport.connect(url, role="generator", name="gen", config=config) as generator,
        ):
            await generator.bind(weights(0.0))
            await trainer.put(weights(1.0), 1, snapshot=True)
            with await generator.get(timeout_s=2.0) as update:
                return f"got {update.version}"

    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    print("warm", await run())
    gc.collect()
    before = opened()
    for more in range(0, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + more, usual[1]))
        try:
            ended = await run()
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
        gc.collect()  # an error holds the frames it came through
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        for _ in range(100):
            if opened() <= before:
                break
            await asyncio.sleep(0.02)
        print(f"{more} left {opened() - before}, {ended}")


def test_too_few_descriptors_are_a_typed_error_that_says_what_to_raise(run_python: Callable[..., Outcome], tmp_path: Path) -> None:
    """At whatever point of a job the limit is met, from the first socket on to the last mapping; and nothing is left open by it."""
    done = run_python(scarce, str(tmp_path))
    warm, *lines = done.stdout.splitlines()
    assert (warm, done.returncode) == ("warm got 1", 0), done
    ended = [re.fullmatch(r"(\d+) left (\d+), (.*)", line) for line in lines]
    told = [match[3] for match in ended if match is not None]
    assert [match[2] for match in ended if match is not None] == ["0"] * 40, done
    assert told[-1] == "got 1", done
    failed = [text for text in told if text != "got 1"]
    # Where it is the other end that has none left, it cannot say so: those waits end typed, and by their deadline.
    assert {text.split(":")[0] for text in failed} <= {"ResourceError", "ConnectError", "DeadlineError", "UnavailableError"}, done
    named = [text for text in failed if re.search(r"no descriptor left \(.*\): this process may have \d+", text)]
    assert len(named) > len(failed) / 2 > 5, done
    assert all("ulimit -n" in text for text in named if text.startswith("ResourceError"))
    assert "connections wait to be accepted: no descriptor left" in done.stderr


def test_a_home_that_cannot_be_written_to_is_no_obstacle(run_python: Callable[..., Outcome], tmp_path: Path) -> None:
    runtime, scratch = tmp_path / "run", tmp_path / "tmp"
    runtime.mkdir(mode=0o700)
    scratch.mkdir()
    nowhere = {"HOME": "/proc/nothing", "XDG_STATE_HOME": ""}
    for env in ({"XDG_RUNTIME_DIR": str(runtime)}, {"XDG_RUNTIME_DIR": "", "TMPDIR": str(scratch)}):
        done = run_python(job, None, env=nowhere | env)
        assert done.stdout.splitlines()[-1:] == ["got 1"], done
        assert "no flight record" not in done.stderr
    for folder in (runtime / "wtransport", *scratch.glob("wtransport-*")):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "secret").stat().st_mode & 0o777 == 0o600
        assert list(folder.rglob("*.ring"))


def test_a_folder_that_others_may_write_to_is_not_used(run_python: Callable[..., Outcome], tmp_path: Path) -> None:
    """Somebody made the folder under the temporary directory first: no secret of ours lies in it."""
    taken = tmp_path / f"wtransport-{os.geteuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    env = {"HOME": "/proc/nothing", "XDG_STATE_HOME": "", "XDG_RUNTIME_DIR": "", "TMPDIR": str(tmp_path)}
    done = run_python(job, None, env=env)
    assert "ConfigError" in done.stdout, done
    assert list(taken.iterdir()) == []


def test_without_a_place_for_rings_there_is_one_warning_and_the_job_goes_on(run_python: Callable[..., Outcome], tmp_path: Path) -> None:
    done = run_python(job, "/proc/nothing")
    assert done.stdout.splitlines()[-1:] == ["got 1"], done
    assert done.stderr.count("no flight record of trainer-0 is kept") == 1
