"""What holds for every test.

Nothing is left behind, the library blocks no event loop, torch uses one thread, CI draws no lots.
"""

from __future__ import annotations

import inspect
import os
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from tests.helpers.leaks import held, left_behind
from tests.helpers.scripts import Outcome, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_FAILED = pytest.StashKey[bool]()

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember that a test failed: its traceback then holds what it used."""
    report: Any = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="session", autouse=True)
def _quiet_process() -> None:
    """Use one torch thread, and start what multiprocessing keeps before the first look at it."""
    import torch

    torch.set_num_threads(1)
    resource_tracker.ensure_running()


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, child processes or shared memory behind.

    A test that failed already is not looked at: its traceback keeps alive what it used.
    """
    before = held()
    yield
    if not request.node.stash.get(_FAILED, False) and (extra := left_behind(before)):
        pytest.fail("left behind:\n  " + "\n  ".join(extra), pytrace=False)


@pytest.fixture(autouse=True)
def _loop_never_blocked(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a coroutine test, raise where a call made by the library blocks an event loop.

    This holds on every thread that runs one. The test's own calls and those of the conformance
    suite may block: some tests block the loop on purpose.
    """
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        yield
        return
    with blockbuster_ctx("wtransport", excluded_modules=["wtransport.testing"]):
        yield


@pytest.fixture
def start_python() -> Iterator[Callable[..., Script]]:
    """Start Python processes: ``start_python(function_or_text, *args, env=None) -> Script``.

    All are killed after the test.
    """
    scripts: list[Script] = []

    def start(source: str | Callable[..., Any], *args: object, env: Mapping[str, str] | None = None) -> Script:
        scripts.append(Script(source, args, env))
        return scripts[-1]

    yield start
    for script in scripts:
        script.kill()


@pytest.fixture
def run_python(start_python: Callable[..., Script]) -> Callable[..., Outcome]:
    """Run one to its end: ``run_python(function_or_text, *args, timeout_s=60, env=None)``."""

    def run(
        source: str | Callable[..., Any],
        *args: object,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Outcome:
        return start_python(source, *args, env=env).wait(timeout_s)

    return run
