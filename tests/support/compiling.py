"""Where JAX keeps what it compiled."""

from pathlib import Path


def compile_once(cache: Path) -> dict[str, str]:
    """Environment in which JAX compiles each program in one process only."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
