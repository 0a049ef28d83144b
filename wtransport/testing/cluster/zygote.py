"""A process that has imported torch and the library once, and forks a member's process for whoever asks: that takes milliseconds.

It has no thread when it forks, so that such a process is as good as a fresh interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import traceback

from wtransport.testing.cluster.peer import serve

_START_TIMEOUT_S = 120.0
_CLONE_NEWNET = 0x40000000


class Zygote:
    """The asking side: one forking process.

    Args:
        root: Folder that the process runs in; None for this one's.
        env: Its whole environment; None for this one's.
    """

    def __init__(self, root: str | None = None, env: dict[str, str] | None = None) -> None:
        self._sock, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=root,
                env=env,
            )
        self._sock.settimeout(_START_TIMEOUT_S)
        self._sock.recv(1)

    def fork(self, netns: int | None = None) -> tuple[int, socket.socket]:
        """Start a process in a session of its own; returns its process id and the socket it is commanded by.

        Args:
            netns: Descriptor of the network namespace it lives in; None for ours.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            fds = [theirs.fileno()] if netns is None else [theirs.fileno(), netns]
            socket.send_fds(self._sock, [b"!"], fds)
        return int.from_bytes(self._sock.recv(8), "big"), ours

    def close(self) -> None:
        """End the zygote; the processes it has forked are their users' business."""
        self._sock.close()
        self._process.wait(10)


def enter_network(fd: int) -> None:
    """Move this process, which has one thread yet, into the network namespace behind *fd*.

    Raises:
        OSError: If it may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _main(fd: int) -> None:
    import torch

    import wtransport.transport

    assert wtransport.transport is not None  # and with it whatever a member needs
    torch.set_num_threads(1)
    torch.ones(2).sum()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.send(b"!")
    while True:
        _, fds, _, _ = socket.recv_fds(sock, 1, 2)
        if not fds:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                if len(fds) > 1:
                    enter_network(fds[1])
                    os.close(fds[1])
                serve(socket.socket(fileno=fds[0]))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        for passed in fds:
            os.close(passed)
        sock.send(pid.to_bytes(8, "big"))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
