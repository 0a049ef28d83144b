"""An operator: asks the coordinator of a job, and steers it, without being a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.control.codec import Codec
from wtransport.control.dial import connect
from wtransport.control.secret import Secret
from wtransport.errors import ConfigError, PeerLostError, TransportError
from wtransport.service.describe import MemberInfo, describe_members
from wtransport.service.requests import Requests
from wtransport.session import messages as msg

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.config import TransportConfig


async def members(url: str, config: TransportConfig) -> tuple[MemberInfo, ...]:
    """Who is in the job at *url*, and how they are.

    Raises:
        ConnectError: If no coordinator answers there within ``connect_timeout_s``.
        AuthError: If it does not know the secret, or this side does not.
    """
    reply = await _ask(url, config, "members", msg.MembersRequest)
    assert isinstance(reply, msg.MembersReply)
    return describe_members(reply.members)


async def steer(url: str, config: TransportConfig, verb: str, name: str, *, reason: str = "", other: str = "") -> None:
    """``exclude`` or ``admit`` the member called *name*, or ``replace`` it by *other*.

    Raises:
        ConfigError: If that is not possible; the text says why.
        ConnectError: If no coordinator answers there within ``connect_timeout_s``.
    """
    reply = await _ask(url, config, verb, lambda number: msg.SteerRequest(number, verb, name, reason, other))
    assert isinstance(reply, msg.SteerReply)
    if reply.message:
        raise ConfigError(f"{verb} {name}: {reply.message}")


async def _ask(url: str, config: TransportConfig, what: str, request: Callable[[int], object]) -> msg.SteerReply | msg.MembersReply:
    secret = await Secret.of_config(config)
    codec = Codec(msg.MESSAGES, max_frame_nbytes=config.max_frame_nbytes)
    hello = {"role": "operator"}
    channel = await connect(url, secret=secret, hello=hello, codec=codec, deadline_s=config.connect_timeout_s)

    def send(message: object) -> bool:
        channel.send_nowait(message)
        return True

    requests = Requests(send, config.stall_timeout_s)

    def heard(message: object) -> None:
        if isinstance(message, msg.SteerReply | msg.MembersReply):
            requests.answered(message)

    def ended(error: TransportError | None) -> None:
        requests.fail(error or PeerLostError("the coordinator closed the channel before it answered", phase=what))

    channel.attach(heard, ended)
    try:
        return await requests.ask(what, request)
    finally:
        await channel.close()
