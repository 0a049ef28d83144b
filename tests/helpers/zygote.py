"""A process that has imported torch and the library once, and forks a peer for whoever asks: a peer starts in milliseconds.

It has no thread when it forks, so that a peer is as good as a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback

from tests.helpers.peer import serve

_MAX_REQUEST_NBYTES = 65536


class Zygote:
    """The tests' side: one forking process.

    Args:
        root: Folder that ``tests`` and ``wtransport`` are imported from.
    """

    def __init__(self, root: str) -> None:
        self._sock, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=root,
            )
        self._sock.settimeout(60)
        self._sock.recv(1)

    def fork(self, env: dict[str, str]) -> tuple[int, socket.socket]:
        """Start a peer in a session of its own; returns its process id and the socket it is commanded by."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [json.dumps(env).encode()], [theirs.fileno()])
        return int.from_bytes(self._sock.recv(8), "big"), ours

    def close(self) -> None:
        """End the zygote; peers are their users' business."""
        self._sock.close()
        self._process.wait(10)


def _main(fd: int) -> None:
    import torch

    import wtransport.transport

    assert wtransport.transport
    torch.set_num_threads(1)
    torch.ones(2).sum()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sock = socket.socket(fileno=fd)
    sock.send(b"!")
    while True:
        request, fds, _, _ = socket.recv_fds(sock, _MAX_REQUEST_NBYTES, 1)
        if not fds:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.update(json.loads(request))
            code = 1
            try:
                serve(socket.socket(fileno=fds[0]))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(fds[0])
        sock.send(pid.to_bytes(8, "big"))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
