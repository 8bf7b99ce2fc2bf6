"""`motor-nodemanager stop --engines`: ends this node's engines without a manager."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from motor_rpc.deadline import within

from nodemanager import left_overs, shim_client
from nodemanager.config import NodeConfig
from nodemanager.records import AlreadyLockedError, RecordError, Records, StartRecord, boot_id, read_json
from nodemanager.shim_client import ShimClient

log = logging.getLogger(__name__)

MARGIN_SECONDS = 15.0  # for the SIGKILL after the grace


async def stop_engines(config: NodeConfig, grace: float | None) -> int:
    """End every engine of this state folder; 0 when nothing is left. Says so when a manager runs: its
    controller will see failures and may start the engines again.
    """
    records = Records(config.state_dir)
    if not records.slots_dir.is_dir():
        log.info("nothing was ever started from %s", config.state_dir)
        return 0
    try:
        records.lock()
    except AlreadyLockedError:
        log.warning("a manager is running on %s: the controller may start engines again", config.state_dir)
    except RecordError as error:
        log.warning("%s", error)
    try:
        node_id = config.node_id or (read_json(config.state_dir / "node.json") or {}).get("node_id", "")
        owner = left_overs.Owner(node_id, str(config.state_dir))
        running = [(record, folder) for folder in records.generations() if (record := records.load(folder)) is not None]
        results = await asyncio.gather(*(_stop(records, owner, *entry, grace) for entry in running))
    finally:
        records.unlock()
    return 0 if all(results) else 1


async def _stop(
    records: Records, owner: left_overs.Owner, record: StartRecord, folder: Path, grace: float | None
) -> bool:
    name = f"{record.slot} generation {record.generation}"
    seconds = record.drain_seconds + record.stop_grace if grace is None else grace
    if shim_client.alive(records.status(folder), boot_id()):
        log.info("%s: stopping, SIGKILL after %g s", name, seconds)
        try:
            await within(seconds + MARGIN_SECONDS, _through_shim(folder, seconds))
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("%s: the shim did not do it (%s)", name, error or "no answer")
    status = records.status(folder)
    left = await left_overs.end(lambda: left_overs.of_generation(owner, record.slot, record.generation, status))
    if left:
        log.error("%s: these processes do not die: %s", name, " ".join(map(str, left)))
        return False
    log.info("%s: nothing is left", name)
    return True


async def _through_shim(folder: Path, grace: float) -> None:
    client = await ShimClient.connect(folder)
    try:
        client.stop(grace, "planned", "operator", "motor-nodemanager stop --engines")
        async for status in client.events():
            if status["state"] == "reaped":
                return
    finally:
        client.close()
