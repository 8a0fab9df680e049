"""How fits run JAX: 64 bits without touching the global setting, a cache kept on disk."""

import subprocess
import sys
from pathlib import Path

import jax
import platformdirs
import pytest

from rcp_bayes.inference.runtime import use_compilation_cache

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from stage_a import beats, build
jnp.ones(1).block_until_ready()  # JAX ran before us, in 32 bits
from rcp_bayes.inference.bradley_terry import fit_bradley_terry
fit = fit_bradley_terry(np.array([0, 2]), build(*beats(0, 0, 1)))
assert fit.theta.dtype == np.float64 and fit.max_gradient[0] <= 1e-10
assert not jax.config.jax_enable_x64 and jnp.ones(1).dtype == jnp.float32
"""


def test_compiled_programs_serve_the_next_process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    written = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", SCRIPT], check=True)
        written.append(sorted(tmp_path.glob("rcp-bayes/jax/*solve*")))
    assert len(written[0]) == 1
    assert written[1] == written[0]


@pytest.fixture
def without_a_cache():
    """JAX's own setting put back afterwards."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("without_a_cache")
class TestFolder:
    def test_a_folder_of_the_user_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "new"))
        folder = use_compilation_cache()
        assert folder == tmp_path / "new" / "jax"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert use_compilation_cache() == folder

    def test_the_choice_of_the_user_stands(self, tmp_path):
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        assert use_compilation_cache() == tmp_path

    def test_an_unusable_folder_costs_only_the_cache(self, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "file"))
        assert use_compilation_cache() is None
        assert jax.config.jax_compilation_cache_dir is None
