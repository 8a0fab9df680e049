"""One thread for LAPACK while many small systems are solved side by side.

JAX factors matrices on the CPU with SciPy's OpenBLAS, whose threads cost more than they save at a
few hundred rows: a 150 x 150 Cholesky takes five times as long on an idle machine of two cores, and
a hundred times as long on a busy one, where the threads spin waiting for each other. Our own
threads work on different queries instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Within it SciPy's OpenBLAS uses one thread; a build without it is left as it is."""
    library = _openblas()
    if library is None:
        yield
        return
    threads = library.scipy_openblas_get_num_threads()
    library.scipy_openblas_set_num_threads(1)
    try:
        yield
    finally:
        library.scipy_openblas_set_num_threads(threads)


@functools.cache
def _openblas() -> Any:
    """SciPy's own OpenBLAS, as its wheels carry it; None elsewhere."""
    import scipy.linalg  # loads it

    for path in Path(scipy.__file__).parent.parent.glob("scipy.libs/libscipy_openblas*"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(path))
            library.scipy_openblas_get_num_threads.restype = ctypes.c_int
            library.scipy_openblas_set_num_threads.argtypes = [ctypes.c_int]
            return library
    return None
