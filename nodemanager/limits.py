"""What a machine has to have before it takes a slot, and how long it may take: `limits` of the node file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MIB = 1 << 20


class Limits(BaseModel):
    """Sizes in MiB, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_per_worker_mb: float = Field(default=1024, ge=0)  # less available: a warning
    shm_mb: float = Field(default=64, ge=0)  # free in /dev/shm
    disk_mb: float = Field(default=100, ge=0)  # free below state_dir and below log_dir
    memlock_mb: float = Field(default=64 * 1024, ge=0)  # for accelerators only
    open_files: int = Field(default=4096, ge=0)
    clock_skew_warning: float = Field(default=5.0, ge=0)
    clock_skew: float = Field(default=120.0, gt=0)  # against the controller's clock
    file_seconds: float = Field(default=20.0, gt=0)  # for one look at a file or a file system
    devices_free_seconds: float = Field(default=60.0, ge=0)  # from the last process's end to free device memory
    device_memory_mb: float | None = Field(default=None, ge=0)  # in use by idle devices; default by their kind
