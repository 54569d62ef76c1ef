"""Strategies of training with parameter servers."""

from openks_distributed.cpu.strategy import (
    ASyncModelConfig,
    CPUStrategy,
    GeoSGDModelConfig,
    HalfSyncModelConfig,
    SyncModeConfig,
)

__all__ = ["ASyncModelConfig", "CPUStrategy", "GeoSGDModelConfig", "HalfSyncModelConfig", "SyncModeConfig"]
