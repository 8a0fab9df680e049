"""Packaging promises: tested versions mirrored, light imports, import arrows, no registry hosts."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rcp_bayes"


def test_uv_constraints_mirror_constraints_txt():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints.txt").read_text().split()
    assert project["tool"]["uv"]["constraint-dependencies"] == lines
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", line) for line in lines)


def test_import_is_light():
    code = (
        "import sys, rcp_bayes, rcp_bayes.cli\n"
        "heavy = {'jax', 'numpyro', 'arviz', 'matplotlib', 'openai', 'scipy', 'seaborn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_import_leaves_jax_settings_alone():
    code = (
        "import jax; before = jax.config.jax_enable_x64, jax.config.jax_compilation_cache_dir\n"
        "import rcp_bayes, rcp_bayes.calibrate, rcp_bayes.inference.map\n"
        "assert before == (jax.config.jax_enable_x64, jax.config.jax_compilation_cache_dir)"
    )
    env = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def imported_modules(path: Path) -> set[str]:
    """Absolute names of everything a module imports, relative imports resolved."""
    parts = ("rcp_bayes", *path.relative_to(PACKAGE).with_suffix("").parts)
    package = parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = f"{base}.{node.module}".strip(".") if node.module else base
            found |= {name} | {f"{name}.{alias.name}" for alias in node.names}
    return found


# Library -> the only places that may load it.
HOMES = {
    "jax": ("models", "inference"),
    "numpyro": ("models", "inference"),
    "arviz": ("inference", "diagnostics", "plots"),
    "openai": ("judge/client",),
    "matplotlib": ("plots",),
    "seaborn": ("plots",),
}
# Arrows that must not be drawn: (importer, imported).
FORBIDDEN = [
    ("judge", "rcp_bayes.models"),
    ("judge", "rcp_bayes.inference"),
    ("models", "rcp_bayes.judge"),
    ("models", "rcp_bayes.inference"),
    ("inference", "rcp_bayes.judge"),
    ("simulate", "rcp_bayes.models"),
    ("simulate", "rcp_bayes.inference"),
    ("simulate", "rcp_bayes.judge"),
    ("records", "rcp_bayes.io"),
    ("metrics", "rcp_bayes.evaluate"),
    ("observations", "rcp_bayes.inference"),
]


def modules():
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_import_arrows(path):
    place = path.relative_to(PACKAGE).with_suffix("").as_posix()
    found = imported_modules(path)
    for library, homes in HOMES.items():
        if any(name.split(".")[0] == library for name in found):
            assert place.startswith(homes), f"{place} loads {library}"
    for importer, imported in FORBIDDEN:
        if place.startswith(importer):
            assert not any(name.startswith(imported) for name in found), f"{place} -> {imported}"
    if place not in {"cli", "__main__"}:
        assert "rcp_bayes.cli" not in found


def test_no_registry_host_is_named():
    hosts = ["py" + "pi.org", "pythonhosted" + ".org", "npm" + "js.org", "debian" + ".org"]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\n"):
        if name and (ROOT / name).suffix not in {".png", ".parquet"} and (ROOT / name).is_file():
            text = (ROOT / name).read_text(errors="ignore")
            assert not any(host in text for host in hosts), name
