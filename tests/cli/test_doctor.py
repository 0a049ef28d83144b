"""What doctor finds here, and what it would say elsewhere."""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wtransport.cli import doctor_checks, doctor_host, doctor_vendors
from wtransport.cli.doctor_checks import TRUSTED_NETWORK

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_the_report_has_every_part(wtransport: Run) -> None:
    outcome = wtransport("doctor", "--json")
    assert outcome.returncode == 0, outcome.stdout
    found = json.loads(outcome.stdout)
    names = [check["name"] for check in found["checks"]]
    for name in (
        *("python", "torch", "cuda", "native core", "shm", "/dev/shm", "cgroup memory", "memlock", "ptrace scope", "pidfd"),
        *("network", "tcp 127.0.0.1", "tcp ::1", "nccl", "ucx", "settings", "state directory", "user secret"),
    ):
        assert name in names
    assert found["usable"] is True
    assert found["notes"] == [TRUSTED_NETWORK]
    assert all(check["status"] in ("ok", "warning", "unavailable") and check["reason"] for check in found["checks"])


def test_the_table_says_the_same(wtransport: Run) -> None:
    outcome = wtransport("doctor")
    assert outcome.returncode == 0
    assert "native core" in outcome.stdout
    assert TRUSTED_NETWORK in outcome.stdout


def test_a_wrong_setting_is_named(wtransport: Run) -> None:
    found = json.loads(wtransport("doctor", "--json", WTRANSPORT_STREAMS="many").stdout)
    (check,) = [check for check in found["checks"] if check["name"] == "settings"]
    assert check["status"] == "unavailable"
    assert "WTRANSPORT_STREAMS" in check["reason"]


def test_doctor_changes_nothing(wtransport: Run, tmp_path: Path) -> None:
    wtransport("doctor")
    assert list(tmp_path.iterdir()) == []


def test_this_machine_passes_a_sealed_memfd_and_connects() -> None:
    assert doctor_host.check_shm().status == "ok"
    assert doctor_host.check_loopback(socket.AF_INET, "127.0.0.1").status == "ok"
    assert doctor_host.check_pidfd().status == "ok"


def test_an_address_that_is_not_here_is_unavailable() -> None:
    assert doctor_host.check_loopback(socket.AF_INET, "192.0.2.77").status == "unavailable"
    assert doctor_host.check_loopback(socket.AF_INET6, "2001:db8::77").status == "warning"


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.5.1", "unavailable"),
        ("2.6.0", "ok"),
        ("2.13.0+cpu", "ok"),
        ("2.15.3", "ok"),
        ("2.16.0a0+git1", "warning"),
        ("10.0", "warning"),
        ("?", "unavailable"),
    ],
)
def test_torch_versions(version: str, status: str) -> None:
    assert doctor_checks.check_torch_version(version, "CPU build").status == status


def test_python_versions() -> None:
    assert doctor_checks.check_python((3, 10, 14)).status == "unavailable"
    assert doctor_checks.check_python((3, 11, 0)).status == "ok"


def test_interfaces_of_this_machine_have_addresses() -> None:
    assert "127.0.0.1" in doctor_host.interfaces()["lo"]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({"lo": ["127.0.0.1", "::1"]}, "warning"),
        ({"lo": ["127.0.0.1"], "eth0": ["fe80::1"]}, "warning"),
        ({"lo": ["127.0.0.1"], "eth0": ["10.1.2.3"]}, "ok"),
        ({}, "warning"),
    ],
)
def test_a_machine_without_a_network_is_told(found: dict[str, list[str]], status: str) -> None:
    check = doctor_host.check_interfaces(found)
    assert check.status == status
    assert check.reason


@pytest.mark.parametrize(("limit", "status"), [(resource.RLIM_INFINITY, "ok"), (8 << 20, "warning")])
def test_locked_memory(limit: int, status: str) -> None:
    assert doctor_host.check_memlock(limit).status == status


@pytest.mark.parametrize(("text", "status"), [("0\n", "ok"), ("1\n", "warning"), (None, "ok")])
def test_ptrace_scope(tmp_path: Path, text: str | None, status: str) -> None:
    path = tmp_path / "scope"
    if text is not None:
        path.write_text(text)
    assert doctor_host.check_ptrace_scope(path).status == status


def _cgroup(root: Path, lines: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_tightest_cgroup_counts(tmp_path: Path) -> None:
    limits = {"a/memory.max": f"{8 << 30}\n", "a/b/memory.max": "max\n", "memory.max": f"{2 << 30}\n"}
    root = _cgroup(tmp_path, "0::/a/b\n", limits)
    assert sorted(limit or 0 for limit in doctor_host.cgroup_limits(root)) == [0, 2 << 30, 8 << 30]
    check = doctor_host.check_cgroup(root)
    assert (check.status, check.reason) == ("warning", "limit 2.0 GiB")


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    lines = "5:cpu,memory:/x\n4:pids:/y\n"
    root = _cgroup(tmp_path, lines, {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"})
    assert doctor_host.cgroup_limits(root) == [None]
    assert doctor_host.check_cgroup(root).reason == "no limit"
    assert doctor_host.check_cgroup(tmp_path / "nowhere").reason == "no limit"


def test_gpu_models_are_read_from_the_driver(tmp_path: Path) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t 64\n")
    assert doctor_host.gpu_models(tmp_path) == ["NVIDIA H200", "NVIDIA H200"]
    assert doctor_host.gpu_models(tmp_path / "none") == []


def test_a_library_torch_has_loaded_is_named_first() -> None:
    loaded = [Path("/x/libnccl.so.2"), Path("/x/libucp.so.0"), Path("/x/libncclprofiler.so")]
    (nccl, *_), (ucx,) = doctor_vendors.check_nccl(loaded), doctor_vendors.check_ucx(loaded)
    assert nccl.reason.startswith("torch's own: /x/libnccl.so.2")
    assert ucx.reason == "already loaded: /x/libucp.so.0"


def test_loaded_libraries_are_those_of_this_process() -> None:
    assert any(path.name.startswith("libc.so") for path in doctor_vendors.loaded_libraries())


def test_wheels_are_found_by_their_metadata() -> None:
    assert set(doctor_vendors.installed(["numpy", "no-such-distribution"])) == {"numpy"}


def test_state_directory(tmp_path: Path) -> None:
    assert doctor_checks.check_state_dir(tmp_path / "a" / "b").reason.endswith("made on first use")
    assert doctor_checks.check_state_dir(tmp_path).status == "ok"
    (tmp_path / "file").write_text("")
    assert doctor_checks.check_state_dir(tmp_path / "file" / "x").status == "unavailable"
    assert doctor_checks.check_state_dir(Path("/proc/nothing")).status == "unavailable"


def test_the_secret_must_be_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert doctor_checks.check_secret(path).status == "ok"
    path.write_text("s")
    path.chmod(0o600)
    assert doctor_checks.check_secret(path).status == "ok"
    path.chmod(0o640)
    check = doctor_checks.check_secret(path)
    assert (check.status, "0640" in check.reason) == ("unavailable", True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_foreign_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s")
    path.chmod(0o600)
    os.chown(path, 12345, -1)
    assert doctor_checks.check_secret(path).status == "unavailable"
