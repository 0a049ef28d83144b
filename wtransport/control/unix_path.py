"""Unix sockets with a path: bound without ever taking a live listener's place; blocking calls."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from wtransport.errors import BusyError, ConfigError, exhausted


@dataclass(frozen=True)
class BoundPath:
    """A listening socket and the file that stands for it."""

    sock: socket.socket
    path: Path
    device: int
    inode: int

    def unlink(self) -> None:
        """Remove the file, if it is still this socket's; call it while the socket still listens.

        Whoever finds the path taken removes it only when nobody listens: so nobody can have put
        another file there in the meantime.
        """
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                os.unlink(self.path)


def bind_path(path: Path, backlog: int) -> BoundPath | None:
    """Bind, make the file 0600 and listen; or return None while another process is doing the same.

    The folder is locked meanwhile, so that a socket found there without a listener is always one
    that a killed process left, and is replaced.

    Raises:
        BusyError: If somebody listens on that path.
        ConfigError: If the path cannot be used: no folder, no permission, another kind of file.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        doing = f"make a socket in {path.parent}"
        raise exhausted(error, doing) or ConfigError(f"no socket can be made in {path.parent}: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _bind_locked(path, backlog)
    except BlockingIOError:
        return None
    except OSError as error:
        raise exhausted(error, f"listen at {path}") or ConfigError(f"no socket can be made at {path}: {error.strerror}") from error
    finally:
        os.close(folder)


def _bind_locked(path: Path, backlog: int) -> BoundPath:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        try:
            sock.bind(str(path))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BusyError(f"{path} was taken just now by another program") from error
            raise
        # Before listen: until then nobody can connect, whatever the umask made of the file.
        os.chmod(path, 0o600)
        made = os.lstat(path)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return BoundPath(sock, path, made.st_dev, made.st_ino)


def _remove_stale(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} exists and is not a socket; it is left as it is")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A full backlog, a datagram socket, another user's: all of them are somebody's.
            raise _taken(path) from error
    raise _taken(path)


def _taken(path: Path) -> BusyError:
    return BusyError(f"another process listens on {path}", hint="give each job a path of its own")
