"""`rcp-bayes fit --method map` at NanoBEIR's size, files in and files out, in a fresh process.

Prints seconds and peak memory of the command, twice: with an empty compilation cache and with the
cache that the first run left. The baseline is the time to read the same two files with pandas.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from rcp_bayes.simulation import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=649)
    parser.add_argument("--pool", type=int, default=150)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        simulate(n_queries=arguments.queries, pool_size=arguments.pool).write(base / "world")
        started = time.perf_counter()
        rows = [len(pd.read_parquet(base / "world" / f"stage_{s}.parquet")) for s in "ab"]
        reading = time.perf_counter() - started
        print(f"{arguments.queries} queries: {rows[0]:,} + {rows[1]:,} rows")
        print(f"baseline, pandas reads both files: {reading:.2f} s")
        environment = os.environ | {"XDG_CACHE_HOME": str(base / "cache")}
        for state in ("empty", "filled"):
            argv = [sys.executable, "-m", "rcp_bayes", "fit", str(base / "world")]
            started = time.perf_counter()
            argv += ["--out", str(base / state)]
            subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            info = json.loads((base / state / "fit.json").read_text())
            print(f"compilation cache {state}: {seconds:.1f} s, {seconds / reading:.0f} x reading,")
            print(f"  peak {peak:.2f} GiB, largest gradient {info['max_gradient']:.1e}")
            print(f"  seconds by step: {info['seconds']}")


if __name__ == "__main__":
    main()
