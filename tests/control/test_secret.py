from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from wtransport.control.secret import Secret
from wtransport.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Script


def _read_when_told(path: str, start: str) -> None:
    import time
    from pathlib import Path

    from wtransport.control.secret import Secret

    print("ready")
    while not Path(start).exists():
        time.sleep(0)
    print("key " + Secret.of_user(Path(path)).key.decode())


def test_the_file_is_made_once_and_for_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "secret"
    first = Secret.of_user(path)
    assert first.scope == "user"
    assert len(first.key) == 64
    assert Secret.of_user(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == ["secret"]


def test_processes_that_make_it_at_once_agree(tmp_path: Path, start_python: Callable[..., Script]) -> None:
    path, start = tmp_path / "state" / "secret", tmp_path / "start"
    scripts = [start_python(_read_when_told, str(path), str(start)) for _ in range(4)]
    for script in scripts:
        script.line("ready")
    start.touch()
    keys = {script.line("key ") for script in scripts}
    assert len(keys) == 1
    assert os.listdir(path.parent) == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "state" / "secret"
    Secret.of_user(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="other users may read it"):
        Secret.of_user(path)


def test_a_folder_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    path.parent.mkdir()
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="other users may read it or replace it"):
        Secret.of_user(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given", ["secret", "."])
def test_a_file_of_another_user_is_refused(tmp_path: Path, given: str) -> None:
    path = tmp_path / "state" / "secret"
    Secret.of_user(path)
    os.chown(path.parent / given, 1, 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        Secret.of_user(path)


def test_what_is_no_plain_file_with_a_key_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    real = folder / "real"
    Secret.of_user(real)
    (folder / "link").symlink_to(real)
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "folder").mkdir()
    for name, text in (("short", b"abc"), ("long", b"x" * 5000), ("empty", b"")):
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o600)
    for name in ("link", "pipe", "folder", "short", "long", "empty"):
        with pytest.raises(ConfigError, match="cannot be used"):
            Secret.of_user(folder / name)


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        Secret.of_user(tmp_path / "file" / "secret")


def test_a_secret_is_never_shown_and_never_empty() -> None:
    assert "hidden" not in repr(Secret.of_job("hidden"))
    with pytest.raises(ConfigError):
        Secret.of_job("")
