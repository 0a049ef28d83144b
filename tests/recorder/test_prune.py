"""A job's folder keeps the newest rings of dead processes, and every ring of a living one."""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import TYPE_CHECKING

import msgpack
import pytest

from wtransport.recorder import prune as prune_module
from wtransport.recorder.format import HEADER, HEADER_NBYTES
from wtransport.recorder.process import ProcessIdentity
from wtransport.recorder.prune import KEPT_RINGS, prune, prune_jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wtransport.recorder.ring import FlightRecorder

    Open = Callable[..., FlightRecorder]


def _age(path: Path, wall_open_ns: int) -> None:
    """Give a ring another time of its making."""
    assert HEADER.fields is not None
    with path.open("r+b") as file:
        file.seek(HEADER.fields["wall_open_ns"][1])
        file.write(struct.pack("<Q", wall_open_ns))


def test_only_the_newest_of_the_closed_stay(open_recorder: Open) -> None:
    recorders = [open_recorder(f"member-{i}", num_records=1) for i in range(6)]
    for i, recorder in enumerate(recorders):
        _age(recorder.path, 1000 - i)
    for recorder in recorders[:5]:
        recorder.close()
    folder = recorders[0].path.parent
    (folder / "zero.ring").write_bytes(b"")
    assert prune(folder, kept=2) == 3
    assert {path.name for path in folder.iterdir()} == {*(recorders[i].path.name for i in (0, 1, 5)), "zero.ring"}
    assert prune(folder, kept=2) == 0
    assert prune(folder / "missing") == 0


def test_opening_prunes(open_recorder: Open) -> None:
    old = open_recorder("old", num_records=1)
    old.close()
    _age(old.path, 1)
    for i in range(KEPT_RINGS):
        open_recorder(f"member-{i}", num_records=1).close()
    assert old.path.exists()
    living = open_recorder("living", num_records=1)
    assert not old.path.exists()
    assert living.path.exists()
    assert len(list(old.path.parent.iterdir())) == KEPT_RINGS + 1


def test_a_ring_that_may_be_written_elsewhere_stays(open_recorder: Open) -> None:
    recorder = open_recorder(num_records=1)
    header = prune_module.read_header(recorder.path)
    about = dataclasses.asdict(dataclasses.replace(header.meta, hostname="elsewhere", boot_id="another"))
    packed = msgpack.packb(about)
    with recorder.path.open("r+b") as file:
        file.seek(48)
        file.write(struct.pack("<I", len(packed)))
        file.seek(192)
        file.write(packed)
    assert recorder.path.stat().st_size == HEADER_NBYTES + 256
    assert prune_module.read_header(recorder.path).status == "unknown"
    assert prune(recorder.path.parent, kept=0) == 0


def test_processes_are_told_apart() -> None:
    mine = ProcessIdentity.current()
    assert mine.alive() is True
    assert dataclasses.replace(mine, start_ticks=mine.start_ticks + 1).alive() is False
    assert dataclasses.replace(mine, boot_id="earlier").alive() is False
    assert dataclasses.replace(mine, boot_id="earlier", hostname="elsewhere").alive() is None
    assert dataclasses.replace(mine, boot_id="").alive() is None
    assert dataclasses.replace(mine, pid_namespace=1).alive() is None
    assert dataclasses.replace(mine, pid=2**32 - 1).alive() is False


def test_a_zombie_is_dead() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert dataclasses.replace(ProcessIdentity.current(), pid=child).alive() is False
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "x" * 500, "ünï"])
def test_any_name_becomes_a_file_in_the_folder(open_recorder: Open, tmp_path: Path, name: str) -> None:
    recorder = open_recorder(name, job=name, num_records=1)
    assert recorder.path.resolve().parent.parent == tmp_path.resolve()
    assert not recorder.path.name.startswith(".")


def test_folders_of_the_oldest_jobs_go_once_nobody_is_left_in_them(open_recorder: Open) -> None:
    recorders = [open_recorder(f"member-{i}", job=f"job-{i}", num_records=1) for i in range(5)]
    state = recorders[0].path.parent.parent
    for i, recorder in enumerate(recorders):
        os.utime(recorder.path.parent, (1000 + i, 1000 + i))
    for recorder in recorders[1:]:
        recorder.close()
        os.utime(recorder.path.parent, (1000 + recorders.index(recorder), 1000 + recorders.index(recorder)))
    (recorders[1].path.parent / "notes.txt").write_text("mine")
    (state / "secret").write_text("kept")
    os.utime(recorders[1].path.parent, (1001, 1001))
    assert prune_jobs(state, kept=2) == 1
    left = {path.name for path in state.iterdir()}
    assert left == {"secret", *(recorders[i].path.parent.name for i in (0, 1, 3, 4))}
    assert recorders[0].path.exists()
    assert {path.name for path in recorders[1].path.parent.iterdir()} == {"notes.txt"}
    assert prune_jobs(state / "missing") == 0
