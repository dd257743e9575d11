"""What every topology must say about itself, free of Mininet so that schemas load fast."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TopologyParameters(BaseModel):
    """Common parameters: rates in bit/s of Ethernet frames, queues in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    workers: int = Field(default=3, ge=1, le=64)
    rate_bps: int = Field(default=100_000_000, ge=100_000, le=10_000_000_000)
    queue_bytes: int = Field(default=150_000, ge=3_028, le=64 << 20)

    def host_names(self) -> list[str]:
        """Names of all training hosts: the server first, then the workers in order."""
        return ["server", *self.worker_names()]

    def worker_names(self) -> list[str]:
        """Names of the workers in rank order."""
        return [f"worker-{rank}" for rank in range(1, self.workers + 1)]
