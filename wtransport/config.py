"""The one place for settings, and the only module that reads the environment."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import typing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final, Literal, Self

from wtransport.errors import ConfigError, exhausted

VerifyLevel = Literal["off", "wire", "full"]
StragglerPolicy = Literal["behind", "wait", "exclude", "raise"]
_PREFIX = "WTRANSPORT_"
_SECRET = "secret"


def _default_copy_threads() -> int:
    # One core in four at least one: the cores belong to training and generation, the copier fills memory bandwidth with few threads.
    return max(1, len(os.sched_getaffinity(0)) // 4)


@dataclass(frozen=True, kw_only=True)
class TransportConfig:
    """Frozen settings of one transport; every knob there is.

    Attributes:
        secret: The job's shared secret. None: members on one host share a per-user secret file; a non-loopback address then is refused.
        host: Interface address (or host name) this member listens on and advertises; None picks loopback for a loopback coordinator, else
            the local address of the route to the coordinator.
        copy_threads: Native copy threads of this transport.
        streams: TCP sockets per data endpoint.
        verify: ``off``, ``wire`` (digests in the copy pass) or ``full`` (source and destination re-read).
        bucket_nbytes: Most bytes moved by one native call.
        inflight_buckets: Buckets under way to one generator at a time.
        connect_timeout_s: Longest wait for the coordinator, a peer, or a rendezvous.
        credit_timeout_s: Wait for a writable slot at a generator before it is reported ``behind``.
        straggler: What a put does about a generator that takes nothing, for want of a writable slot, a binding or a link: ``behind`` goes
            on without it after ``credit_timeout_s``; ``wait`` does after ``straggler_timeout_s``; ``exclude`` then puts it out of the job
            (a transfer that moves is progress, however slow); ``raise`` raises ``UndeliveredError`` once the others are served.
        straggler_timeout_s: See ``straggler``.
        min_delivered: A put that reached fewer generators raises ``UndeliveredError``; the version stands, and the others pull it later.
        stall_timeout_s: A transfer, or an awaited answer, without progress for this long has failed.
        abort_grace_s: Wait for cancelled native work to settle before its endpoint is aborted.
        heartbeat_interval_s: Seconds between beats of the native heartbeat thread.
        silent_after_s: A member without a beat for this long is lost.
        rebuild_s: A restarted coordinator waits this long for the members of the last roster before it admits.
        hosts_coordinator: Whether trainer rank 0 hosts the coordinator where nothing answers at the url yet; False where ``wtransport
            serve`` does, so that members started before it cannot take its place.
        max_restarts: Of the member that hosts the coordinator, or of ``wtransport serve``: a member lost more often than this under one
            name is excluded until it is admitted by hand; None never excludes it.
        min_healthy: Likewise: live generators below which the job is reported ``unhealthy``, and no policy excludes one.
        max_frame_nbytes: Cap of one control frame.
        recorder_dir: Folder of the flight rings; None is this user's state directory (``$XDG_STATE_HOME``, ``~/.local/state``), or where
            that cannot be written to, ``$XDG_RUNTIME_DIR`` or a 0700 folder of this user under the temporary directory.
        recorder_records: Records kept in the ring of one member.
    """

    secret: str | None = field(default=None, repr=False)
    host: str | None = None
    copy_threads: int = field(default_factory=_default_copy_threads)
    streams: int = 2
    verify: VerifyLevel = "wire"
    bucket_nbytes: int = 64 << 20
    inflight_buckets: int = 4
    connect_timeout_s: float = 60.0
    credit_timeout_s: float = 1.0
    straggler: StragglerPolicy = "behind"
    straggler_timeout_s: float = 30.0
    min_delivered: int = 0
    stall_timeout_s: float = 30.0
    abort_grace_s: float = 5.0
    heartbeat_interval_s: float = 0.2
    silent_after_s: float = 1.0
    rebuild_s: float = 5.0
    hosts_coordinator: bool = True
    max_restarts: int | None = None
    min_healthy: int = 0
    max_frame_nbytes: int = 64 << 20
    recorder_dir: Path | None = None
    recorder_records: int = 4096

    def __post_init__(self) -> None:
        folder: object = self.recorder_dir
        if isinstance(folder, str):
            object.__setattr__(self, "recorder_dir", Path(folder))
        hints = typing.get_type_hints(type(self))
        for item in fields(self):
            _check_type(item.name, getattr(self, item.name), hints[item.name])
        for name, low in (("copy_threads", 1), ("streams", 1), ("inflight_buckets", 1), ("recorder_records", 16)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, not {getattr(self, name)}")
        if min(self.max_restarts or 0, self.min_healthy, self.min_delivered) < 0:
            raise ConfigError("max_restarts, min_healthy and min_delivered must not be negative")
        if self.recorder_records > 1 << 18:
            raise ConfigError(f"recorder_records must be at most {1 << 18}, not {self.recorder_records}")
        if self.streams > 64 or self.copy_threads > 256:
            raise ConfigError("streams is at most 64 and copy_threads at most 256")
        for name, words in (("verify", typing.get_args(VerifyLevel)), ("straggler", typing.get_args(StragglerPolicy))):
            if getattr(self, name) not in words:
                raise ConfigError(f"{name} must be one of {words}, not {getattr(self, name)!r}")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_s") and not (isinstance(value, int | float) and 0 < value < 1e9):
                raise ConfigError(f"{item.name} must be a positive number of seconds, not {value!r}")
        if self.bucket_nbytes < 4096 or self.max_frame_nbytes < 4096:
            raise ConfigError("bucket_nbytes and max_frame_nbytes must be at least 4096")
        if self.silent_after_s < 2 * self.heartbeat_interval_s:
            raise ConfigError("silent_after_s must be at least twice heartbeat_interval_s, else one late beat loses a member")
        if self.secret is not None and not self.secret:
            raise ConfigError("secret must not be empty; leave it None for the per-user secret of one host")

    @classmethod
    def from_env(cls, **overrides: object) -> Self:
        """Read ``WTRANSPORT_<NAME>`` for every field (``WTRANSPORT_COPY_THREADS=4``); keyword arguments win over the environment.

        Raises:
            ConfigError: If a value cannot be parsed, or a ``WTRANSPORT_`` name is not a setting.
        """
        hints = typing.get_type_hints(cls)
        values: dict[str, object] = {}
        for key, text in os.environ.items():
            if not key.startswith(_PREFIX):
                continue
            name = key[len(_PREFIX) :].lower()
            if name not in hints:
                raise ConfigError(f"{key} is not a setting of wtransport", hint=f"settings are {', '.join(sorted(hints))}")
            values[name] = _parse(key, text, hints[name])
        values.update(overrides)
        return cls(**values)  # type: ignore[arg-type]

    def replace(self, **changes: object) -> Self:
        """Return a copy with *changes* applied and checked."""
        return replace(self, **changes)  # type: ignore[arg-type]


_BOOLS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _check_type(name: str, value: object, hint: object) -> None:
    allowed = typing.get_args(hint) or (hint,)
    if typing.get_origin(hint) is Literal:
        return  # its values are checked one by one
    kinds = tuple(kind for kind in allowed if isinstance(kind, type))
    if float in kinds:
        kinds = (*kinds, int)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        names = " or ".join(kind.__name__.replace("NoneType", "None") for kind in allowed if isinstance(kind, type))
        raise ConfigError(f"{name} must be {names}, not {value!r}")


def _parse(key: str, text: str, hint: object) -> object:
    """A setting's text as its annotation's type: bool, int, float, Path or str (also ``| None``), or one of a Literal's words."""
    if hint is bool or bool in typing.get_args(hint):
        if text.lower() not in _BOOLS:
            raise ConfigError(f"{key}={text!r} is none of {', '.join(_BOOLS)}")
        return _BOOLS[text.lower()]
    for kind in (int, float, Path):
        if hint is kind or kind in typing.get_args(hint):
            try:
                return kind(text)
            except ValueError as error:
                raise ConfigError(f"{key}={text!r} is not {kind.__name__}") from error
    return text


def state_dir(config: TransportConfig) -> Path:
    """Folder for what must outlive a killed process (flight rings): ``recorder_dir``, else the user's state directory."""
    return config.recorder_dir if config.recorder_dir is not None else _first_usable(_state_homes())


def secret_path() -> Path:
    """File of the per-user secret that members on one host share when no secret is configured."""
    homes = _state_homes()
    for home in homes:
        # Not Path.exists: it raises where the home is another user's, as in a container that runs as somebody else than its image.
        if os.path.exists(home / _SECRET) or _usable(home):
            return home / _SECRET
    return homes[0] / _SECRET


def _state_homes() -> tuple[Path, ...]:
    """Where this user's state may lie, best first: containers often have a home that is missing or read-only."""
    homes = []
    if base := os.environ.get("XDG_STATE_HOME"):
        homes.append(Path(base) / "wtransport")
    else:
        with contextlib.suppress(RuntimeError):  # no home, and no entry of this user that names one
            homes.append(Path.home() / ".local" / "state" / "wtransport")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        homes.append(Path(runtime) / "wtransport")
    return (*homes, Path(tempfile.gettempdir()) / f"wtransport-{os.geteuid()}")


def _first_usable(homes: tuple[Path, ...]) -> Path:
    return next((home for home in homes if _usable(home)), homes[0])


def _usable(folder: Path) -> bool:
    """Whether *folder* is, or could be made, a folder of this user that only this user writes to; nothing is left behind."""
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if existing == folder:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return False
        # What root may write to, and what a mount allows, is only known by trying.
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError as error:
        if (none_left := exhausted(error, f"look at {existing}")) is not None:
            raise none_left from error
        return False
