"""What every control channel of a member or a coordinator is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wtransport.control.channel import ChannelLimits

if TYPE_CHECKING:
    from wtransport.config import TransportConfig


def channel_limits(config: TransportConfig) -> ChannelLimits:
    """The limits that the settings of a job set."""
    return ChannelLimits(
        max_frame_nbytes=config.max_frame_nbytes,
        max_send_nbytes=4 * config.max_frame_nbytes,
        stall_timeout_s=config.stall_timeout_s,
    )
