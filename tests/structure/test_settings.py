"""Settings: their types, and what the environment may say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import wtransport
from wtransport.config import TransportConfig


@dataclass(frozen=True)
class Wider(TransportConfig):
    """As a later release might have it."""

    flag: bool = False
    maybe: bool | None = None
    mode: Literal["a", "b"] = "a"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import os

    for key in [key for key in os.environ if key.startswith("WTRANSPORT_")]:
        monkeypatch.delenv(key)
    return monkeypatch


def test_every_kind_of_setting_is_read_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    said = {
        "COPY_THREADS": "3",
        "STALL_TIMEOUT_S": "2.5",
        "RECORDER_DIR": "/x",
        "SECRET": "s",
        "VERIFY": "full",
        "FLAG": "Yes",
        "MAYBE": "0",
    }
    for name, text in said.items():
        environment.setenv(f"WTRANSPORT_{name}", text)
    found = Wider.from_env(secret="mine", mode="b")
    assert (found.copy_threads, found.stall_timeout_s, found.recorder_dir) == (3, 2.5, Path("/x"))
    assert (found.verify, found.flag, found.maybe, found.secret, found.mode) == ("full", True, False, "mine", "b")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("COPY_THREADS", "many", "is not int"),
        ("COPY_THREADS", "0", "at least 1"),
        ("STALL_TIMEOUT_S", "-1", "positive number of seconds"),
        ("VERIFY", "maybe", "must be one of"),
        ("FLAG", "perhaps", "is none of"),
        ("NO_SUCH", "1", "is not a setting"),
    ],
)
def test_what_the_environment_says_wrongly_is_refused(environment: pytest.MonkeyPatch, name: str, text: str, why: str) -> None:
    environment.setenv(f"WTRANSPORT_{name}", text)
    with pytest.raises(wtransport.ConfigError, match=why):
        Wider.from_env()


@pytest.mark.parametrize("wrong", [{"flag": 1}, {"copy_threads": True}, {"maybe": "yes"}, {"verify": "often"}, {"secret": ""}])
def test_a_value_of_another_kind_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(wtransport.ConfigError):
        Wider(**wrong)  # type: ignore[arg-type]


def test_a_home_of_another_user_is_passed_over(run_python: Any, tmp_path: Path) -> None:
    """A container's image says HOME=/root, and it runs as somebody else."""
    import os

    home, scratch = tmp_path / "home", tmp_path / "scratch"
    home.mkdir(mode=0)
    scratch.mkdir()
    scratch.chmod(0o777)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o011)
    text = """
    import os
    from wtransport.config import TransportConfig, secret_path, state_dir
    if os.geteuid() == 0:
        os.seteuid(65534)
    print(secret_path(), state_dir(TransportConfig()))
    """
    env = {"HOME": str(home), "XDG_STATE_HOME": "", "XDG_RUNTIME_DIR": "", "TMPDIR": str(scratch)}
    done = run_python(text, env=env)
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    assert done.stdout.split() == [f"{scratch}/wtransport-{user}/secret", f"{scratch}/wtransport-{user}"], done
