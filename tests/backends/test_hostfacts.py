"""What a process says of its host, and whom it may watch by that."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys

import pytest

from wtransport.backends.hostfacts import HostFacts


def test_facts_survive_the_wire() -> None:
    facts = HostFacts.collect()
    assert HostFacts.from_wire(facts.to_wire()) == facts
    assert facts.known


def test_a_process_of_this_host_can_be_watched() -> None:
    script = (
        "import sys; from wtransport.backends.hostfacts import HostFacts; print(HostFacts.collect().process, flush=True); sys.stdin.read()"
    )
    mine = HostFacts.collect()
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        theirs = dataclasses.replace(mine, process=process.stdout.readline().strip())
        pidfd = mine.open_process(theirs.to_wire())
        assert pidfd is not None
        try:
            assert not select.select([pidfd], [], [], 0)[0]
            process.kill()
            assert select.select([pidfd], [], [], 10)[0]
        finally:
            os.close(pidfd)
    assert mine.open_process(theirs.to_wire()) is None


def test_whoever_is_elsewhere_or_another_by_now_is_not_watched() -> None:
    facts = HostFacts.collect()
    namespace, pid, started = facts.process.split(":")
    others = [
        dataclasses.replace(facts, boot_id="another"),
        dataclasses.replace(facts, pid_namespace=facts.pid_namespace + 1),
        dataclasses.replace(facts, process=f"{namespace}:{pid}:{int(started) + 1}"),
        dataclasses.replace(facts, process=f"{namespace}:{2**40}:{started}"),
        dataclasses.replace(facts, process="nonsense"),
    ]
    before = len(os.listdir("/proc/self/fd"))
    for other in others:
        assert facts.open_process(other.to_wire()) is None, other
    unknown = dataclasses.replace(facts, boot_id="unknown-1")
    assert unknown.open_process(unknown.to_wire()) is None
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("junk", [None, 1, "text", {}, {"boot_id": 1}])
def test_junk_is_nobody(junk: object) -> None:
    assert HostFacts.collect().open_process(junk) is None
