"""The coordinator alone, without a member around it: the production choice, since it outlives every trainer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wtransport.backends.driver import EngineDriver
from wtransport.backends.hostfacts import HostFacts
from wtransport.control.secret import Secret
from wtransport.service.coordinator.host import CoordinatorHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.config import TransportConfig


async def serve(url: str, config: TransportConfig, stop: asyncio.Event, on_bound: Callable[[tuple[str, ...]], None]) -> None:
    """Host the coordinator of one job until *stop* is set.

    Args:
        url: Where to listen; port 0 lets the system choose.
        config: Secret, deadlines, caps, heartbeat.
        stop: Ends it in order: members keep what they hold and wait for another coordinator.
        on_bound: Gets the bound addresses.

    Raises:
        ConfigError: If *url* is no address of this machine, or other hosts could reach it while there is no secret.
        BusyError: If something listens there.
    """
    secret = await Secret.of_config(config)
    driver = EngineDriver(copy_threads=1, abort_grace_s=config.abort_grace_s)
    host: CoordinatorHost | None = None
    try:
        host = CoordinatorHost(config, secret, driver.engine, await asyncio.to_thread(HostFacts.collect))
        driver.on_liveness = host.on_liveness
        on_bound(await host.listen(url))
        await stop.wait()
    finally:
        if host is not None:
            await host.close()
        await driver.close()
