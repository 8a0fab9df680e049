"""Execute the notebooks from a clean kernel, in place; `--check` leaves the files alone.

A notebook that raises stops with its traceback; each must finish within two minutes.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

LIMIT_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="execute without storing outputs")
    parser.add_argument("notebooks", nargs="*", type=Path)
    arguments = parser.parse_args()
    here = Path(__file__).parent
    paths = arguments.notebooks or sorted(here.glob("*.ipynb"))
    if not paths:
        print("no notebooks found", file=sys.stderr)
        return 1
    for path in paths:
        started = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        place = path.resolve().parent
        if arguments.check:  # figures go to a copy
            place = Path(tempfile.mkdtemp()) / "notebooks"
            place.mkdir()
            (place.parent / "figures").mkdir()
        NotebookClient(
            notebook,
            timeout=LIMIT_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(place)}},
        ).execute()
        seconds = time.perf_counter() - started
        if arguments.check:
            shutil.rmtree(place.parent)
        print(f"{path.name}: {seconds:.1f} s", flush=True)
        if seconds > LIMIT_SECONDS:
            print(f"{path.name} took longer than {LIMIT_SECONDS} s", file=sys.stderr)
            return 1
        if not arguments.check:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # timestamps would change on every run
            nbformat.write(notebook, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
