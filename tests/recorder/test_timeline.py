"""Several rings as one line of time, as a table and as JSON values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from wtransport.recorder.format import FlightBackend, FlightState, Op
from wtransport.recorder.reader import read_ring
from wtransport.recorder.show import json_of, ring_line, table_of
from wtransport.recorder.timeline import find_rings, read_timeline, wall_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wtransport.recorder.ring import FlightRecorder
    from wtransport.recorder.timeline import Timeline

    Open = Callable[..., FlightRecorder]


def _two_members(open_recorder: Open) -> tuple[FlightRecorder, FlightRecorder]:
    trainer, generator = open_recorder("trainer-0"), open_recorder("generator-0", role="generator")
    trainer.event(Op.JOIN)
    generator.event(Op.JOIN)
    put = trainer.begin(Op.PUT, version=1, term=1, publication=2, nbytes=100)
    write = trainer.begin(Op.WRITE, backend=FlightBackend.SHM, peer="generator-0", version=1, nbytes=100)
    trainer.end(write, nbytes_done=100)
    generator.event(Op.INSTALL, version=1)
    trainer.end(put, FlightState.FAILED, nbytes_done=60, code=6)
    generator.begin(Op.PULL, peer="trainer-0", version=2, nbytes=2 << 20)
    generator.event(Op.LOST, peer="trainer-0", outcome="[bold]no beat[/bold]\x1b[31m")
    return trainer, generator


def _shown(timeline: Timeline) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(table_of(timeline.select()))
    return capture.get()


def test_members_are_merged_by_time(open_recorder: Open) -> None:
    trainer, generator = _two_members(open_recorder)
    timeline = read_timeline(find_rings(trainer.path.parent))
    assert [(entry.header.meta.member, entry.record.op) for entry in timeline.entries] == [
        ("trainer-0", Op.JOIN),
        ("generator-0", Op.JOIN),
        ("trainer-0", Op.PUT),
        ("trainer-0", Op.WRITE),
        ("generator-0", Op.INSTALL),
        ("generator-0", Op.PULL),
        ("generator-0", Op.LOST),
    ]
    assert [entry.record.op for entry in read_timeline([generator.path]).select(last=2)] == [Op.PULL, Op.LOST]
    assert [entry.record.op for entry in timeline.select(failed=True)] == [Op.PUT]
    assert [entry.record.op for entry in timeline.select(ops=[Op.JOIN, Op.PUT], last=2)] == [Op.JOIN, Op.PUT]


def test_the_table_says_what_happened(open_recorder: Open) -> None:
    trainer, _ = _two_members(open_recorder)
    rows = _shown(read_timeline(find_rings(trainer.path.parent))).splitlines()
    put = next(row for row in rows if " put " in row)
    assert "failed" in put
    assert "1@1.2" in put
    assert "60 B/100 B" in put
    assert "native error 6" in put
    write = next(row for row in rows if " write shm " in row)
    assert "done" in write
    assert "generator-0" in write
    pull = next(row for row in rows if " pull " in row)
    assert "in flight, " in pull
    assert "?/2.0 MiB" in pull


def test_texts_from_outside_are_neither_markup_nor_control(open_recorder: Open) -> None:
    _, generator = _two_members(open_recorder)
    shown = _shown(read_timeline([generator.path]))
    assert "[bold]no beat[/bold]?[31m" in shown
    assert "\x1b" not in shown


def test_json_has_every_field(open_recorder: Open) -> None:
    trainer, _ = _two_members(open_recorder)
    timeline = read_timeline(find_rings(trainer.path.parent))
    found = json.loads(json.dumps(json_of(timeline, timeline.select())))
    put = next(record for record in found["records"] if record["op"] == "put")
    assert (put["version"], put["publication"], put["nbytes_done"], put["nbytes_total"]) == (1, [1, 2], 60, 100)
    assert (put["state"], put["failed"], put["code"], put["backend"], put["peer"]) == ("failed", True, 6, None, None)
    assert put["duration_s"] > 0
    pull = next(record for record in found["records"] if record["op"] == "pull")
    assert (pull["duration_s"], pull["gb_per_s"], pull["process"]) == (None, None, "running")
    assert pull["age_s"] > 0
    assert {ring["member"] for ring in found["rings"]} == {"trainer-0", "generator-0"}


def test_a_state_directory_shows_all_its_jobs(open_recorder: Open, tmp_path: Path) -> None:
    for job in ("a", "b"):
        open_recorder(job=job).event(Op.JOIN)
    assert len(find_rings(tmp_path)) == 2
    assert len(read_timeline(find_rings(tmp_path)).entries) == 2


def test_what_cannot_be_read_is_listed(open_recorder: Open) -> None:
    trainer, _ = _two_members(open_recorder)
    folder = trainer.path.parent
    (folder / "bad.ring").write_bytes(b"WTRING")
    (folder / "gone.ring").symlink_to(folder / "nowhere")
    timeline = read_timeline(find_rings(folder))
    assert len(timeline.rings) == 2
    assert sorted(item.path.name for item in timeline.unreadable) == ["bad.ring", "gone.ring"]


def test_a_ring_is_summed_up_in_a_sentence(open_recorder: Open) -> None:
    recorder = open_recorder("generator-3", num_records=16, role="generator", rank=3)
    for _ in range(20):
        recorder.event(Op.WRITE)
    recorder.begin(Op.PULL)
    line = ring_line(read_ring(recorder.path))
    assert line.startswith("generator-3 (generator 3, pid ")
    assert line.endswith("): running, 1 in flight, 5 older overwritten")
    recorder.close()
    assert "closed in good order" in ring_line(read_ring(recorder.path))


@pytest.mark.parametrize(
    ("wall_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456Z"),
        (2**64 * 10**9, f"{2**64 * 10**9} ns"),
    ],
)
def test_times_are_said_in_utc(wall_ns: int, text: str) -> None:
    assert wall_text(wall_ns) == text
