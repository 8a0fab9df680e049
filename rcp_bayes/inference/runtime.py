"""How the package runs JAX: 64-bit numbers inside its own calls, compiled code kept on disk.

Importing the package changes no setting of JAX. The functions that fit something call
`use_compilation_cache` once and do their work inside ``with float64():``.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import jax
import platformdirs

# Loading an entry takes about 0.05 s, so that shorter compilations are not worth a file.
_MIN_COMPILE_SECONDS = 0.1


def float64() -> contextlib.AbstractContextManager[object]:
    """Context in which JAX computes in 64 bits (in this thread only, restored on leaving)."""
    return jax.enable_x64(True)


def use_compilation_cache() -> Path | None:
    """Keep compiled programs in the user's cache folder, so that a second run starts faster.

    Does nothing where the user configured JAX's cache already (``JAX_COMPILATION_CACHE_DIR``,
    ``jax_compilation_cache_dir``, ``JAX_ENABLE_COMPILATION_CACHE=0``) or where the folder cannot
    be written: a missing cache costs seconds and never a result.

    Returns
    -------
    Path or None
        The folder in use; None without a cache.
    """
    if not jax.config.jax_enable_compilation_cache:
        return None
    if jax.config.jax_compilation_cache_dir:
        return Path(jax.config.jax_compilation_cache_dir)
    try:
        folder = Path(platformdirs.user_cache_dir("rcp-bayes", appauthor=False)) / "jax"
        # Compiled programs are executed as they are: nobody else may write here.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder
