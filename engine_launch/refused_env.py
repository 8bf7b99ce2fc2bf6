"""Environment names that deploy.json may not set whatever the engine, and reasons that the engines' lists share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TOPOLOGY = "it changes the engine's topology behind its command line"
ADDRESS = "each node fills in its own data address"
DEVICES = "Motor leases devices by name, and each node fills in its own"

SHARED: Mapping[str, str] = MappingProxyType(
    {
        # torch reads these.
        **dict.fromkeys(
            ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), TOPOLOGY
        ),
        "CUDA_VISIBLE_DEVICES": DEVICES,
        "HIP_VISIBLE_DEVICES": DEVICES,
        "SPT_NOENV": "Motor sets it on every engine",
    }
)
