"""What becomes of a transport that nobody closed: it is said once, and the others are told that it leaves."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

from wtransport.errors import TransportError

if TYPE_CHECKING:
    from wtransport.service.member import MemberService
    from wtransport.service.thread import ServiceThread

_CLOSE_TIMEOUT_S = 3.0


def close_abandoned(name: str, thread: ServiceThread, service: MemberService) -> None:
    """Called when the transport was collected, or the interpreter ends; not in a forked child, which owns nothing of it.

    Args:
        name: The member's name.
        thread: Its service thread.
        service: Its service.
    """
    if not thread.alive:
        return
    text = f"the transport of {name} was never closed: async with connect(...), or await transport.close()"
    warnings.warn(text, ResourceWarning, stacklevel=2)
    # At the interpreter's end a new thread may be refused, and with it an orderly close: the process ends anyway.
    with contextlib.suppress(TransportError, TimeoutError, RuntimeError):
        closing = thread.submit(service.close("never closed"))
        if not thread.current:
            closing.result(_CLOSE_TIMEOUT_S)
            thread.stop()
