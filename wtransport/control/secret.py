"""Secret: what a job's members know and others do not; the job's own, or one user's on a host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from wtransport.config import secret_path
from wtransport.errors import ConfigError, exhausted

if TYPE_CHECKING:
    from pathlib import Path

    from wtransport.config import TransportConfig

_KEY_NBYTES = 32
_FILE_CAP_NBYTES = 4096
_FORBIDDEN_MODE = 0o077
_OTHERS_WRITE = 0o022


@dataclass(frozen=True)
class Secret:
    """A key, and how far it reaches.

    Attributes:
        key: The bytes both sides prove to know.
        scope: ``job``: given by the user of the library, good on any network address. ``user``:
            made here for one user, good on loopback and Unix sockets only.
    """

    key: bytes = field(repr=False)
    scope: Literal["job", "user"]

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigError("a secret must not be empty")

    @classmethod
    def of_job(cls, text: str) -> Self:
        """Use the secret that the job's configuration gives."""
        return cls(text.encode(), "job")

    @classmethod
    async def of_config(cls, config: TransportConfig) -> Self:
        """The secret that *config* gives, else this user's; files are read on a worker thread.

        Raises:
            ConfigError: See :meth:`of_user`.
        """
        if config.secret is not None:
            return cls.of_job(config.secret)
        return await asyncio.to_thread(lambda: cls.of_user(secret_path()))

    @classmethod
    def of_user(cls, path: Path) -> Self:
        """Read the per-user secret file, made on first use; blocks on the disk for a moment.

        Any number of processes may do this at once: all get the same key. The file is written
        elsewhere and linked into place, so that none can see a part of it.

        Args:
            path: The file; its folder is made with mode 0700.

        Raises:
            ConfigError: If file or folder belong to another user or are open to others, or cannot
                be made.
        """
        try:
            return cls(_read(path), "user")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise exhausted(error, f"open {path}") or _unusable(path, str(error)) from error
        try:
            _make(path)
            return cls(_read(path), "user")
        except OSError as error:
            raise exhausted(error, f"open {path}") or _unusable(path, str(error)) from error


def _make(path: Path) -> None:
    os.makedirs(path.parent, mode=0o700, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(_KEY_NBYTES).encode())
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: the first one wins, and every loser reads the winner's.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _read(path: Path) -> bytes:
    # O_NONBLOCK: opening a pipe put here by somebody else must not wait for its other end.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(fd), os.stat(path.parent))
        text = os.read(fd, _FILE_CAP_NBYTES + 1).strip()
    finally:
        os.close(fd)
    if not _KEY_NBYTES <= len(text) <= _FILE_CAP_NBYTES:
        raise _unusable(path, f"it has {len(text)} bytes, not {_KEY_NBYTES}..{_FILE_CAP_NBYTES}")
    return text


def _check(path: Path, file: os.stat_result, folder: os.stat_result) -> None:
    me = os.geteuid()
    if not stat.S_ISREG(file.st_mode):
        raise _unusable(path, "it is not a regular file")
    if file.st_uid != me or folder.st_uid != me:
        raise _unusable(path, f"it or its folder belongs to another user than uid {me}")
    if file.st_mode & _FORBIDDEN_MODE or folder.st_mode & _OTHERS_WRITE:
        raise _unusable(path, "other users may read it or replace it")


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the per-user secret {path} cannot be used: {reason}",
        hint="set a secret for the job, or remove the file so that a new one is made",
    )
