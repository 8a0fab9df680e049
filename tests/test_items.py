"""Criterion parameters: the published sets as printed, found by name; refusals with a reason."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from rcp_bayes.errors import InputError
from rcp_bayes.items import Items, load_items, shipped_items
from rcp_bayes.rubric import DEFAULT_RUBRIC, Criterion

ROOT = Path(__file__).resolve().parents[1]

# Table 7(a): beta and gamma of C1 … C5 per fit, row by row as printed.
TABLE_7 = """\
-2.57 1.17 -2.14 1.25 -3.22 1.11 -2.68 1.15
-2.00 1.05 -1.46 1.15 -1.83 1.03 -1.63 1.13
-0.25 0.94 -0.25 0.84 0.70 0.73 0.31 0.73
0.71 1.16 0.91 0.97 1.85 1.27 1.50 1.13
4.12 0.69 2.95 0.79 2.50 0.86 2.50 0.86"""
FITS = {
    "nanobeir-qwen3.5-397b": ("NanoBEIR", "Qwen3.5-397B"),
    "nanobeir-gpt-oss-120b": ("NanoBEIR", "gpt-oss-120b"),
    "bright-qwen3.5-397b": ("BRIGHT", "Qwen3.5-397B"),
    "bright-gpt-oss-120b": ("BRIGHT", "gpt-oss-120b"),
}


def test_the_published_sets_are_table_7_as_printed():
    assert set(shipped_items()) == set(FITS)
    printed = np.array([[float(cell) for cell in row.split()] for row in TABLE_7.splitlines()])
    for column, (name, (suite, judge)) in enumerate(FITS.items()):
        items = load_items(name)
        assert items.beta.tolist() == printed[:, 2 * column].tolist()
        assert items.gamma.tolist() == printed[:, 2 * column + 1].tolist()
        assert items.rounded and items.criteria == DEFAULT_RUBRIC.criteria
        assert (items.source["suite"], items.source["judge"]) == (suite, judge)
        assert items.source["table"] == "7(a)"
        # The constraints hold up to the printing: five values of half a unit in the second place.
        assert abs(items.gamma.sum() - 5) <= 0.025 and abs(items.beta.mean()) <= 0.005
    assert load_items("nanobeir-qwen3.5-397b").gamma.sum() == pytest.approx(5.01)


def test_a_json_suffix_or_a_path_finds_the_same_set(tmp_path):
    name = "bright-gpt-oss-120b"
    by_name = load_items(name)
    shutil.copy(shipped_items()[name], tmp_path / "items.json")
    for place in (f"{name}.json", tmp_path, tmp_path / "items.json"):
        assert load_items(place).to_json() == by_name.to_json()


def test_a_file_wins_over_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Items((Criterion("A"),), np.array([1.0]), np.array([0.0]))
    Path("bright-gpt-oss-120b").write_text(json.dumps(own.to_json()))
    assert load_items("bright-gpt-oss-120b").ids == ("A",)


def test_round_trip_keeps_every_key_and_bit():
    items = Items(
        (Criterion("a", "A", "a?"), Criterion("b", "B", "b?")),
        np.array([0.1 + 0.2, 1.7]),
        np.array([-1 / 3, 1 / 3]),
        priors={"tau": "Normal(1, 1)"},
        link={"kind": "monotone", "knots": [0, 1], "values": [0.0, 2.0]},
        more={"gamma_sd": [0.1, 0.2], "interval": 0.95},
    )
    again = Items.from_json(json.loads(json.dumps(items.to_json())))
    assert again.to_json() == items.to_json()
    assert again.gamma.tobytes() == items.gamma.tobytes()


def test_subset_takes_parameters_unchanged_and_in_order():
    items = load_items("nanobeir-qwen3.5-397b").subset(["C4", "C1"])
    assert items.ids == ("C4", "C1")
    assert items.gamma.tolist() == [1.16, 1.17] and items.beta.tolist() == [0.71, -2.57]
    with pytest.raises(InputError, match=r"no parameters for criteria U1; it has C4, C1"):
        items.subset(["C1", "U1"])
    posterior = Items(
        (Criterion("a"), Criterion("b")), [1, 1], [0, 0], more={"beta_sd": [0.1, 0.2], "n": 2}
    )
    assert posterior.subset(["b"]).more == {"beta_sd": [0.2], "n": 2}


def test_arrays_are_the_items_own():
    gamma = np.array([1.0])
    items = Items((Criterion("a"),), gamma, np.array([0.0]))
    gamma[0] = 9.0
    assert items.gamma.tolist() == [1.0]
    with pytest.raises(ValueError, match="read-only"):
        items.gamma[0] = 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criteria": None}, "criteria is missing"),
        ({"criteria": ["C1", "C2"]}, "not an id, name and question"),
        ({"criteria": [{"id": 1}, {"id": 2}]}, "not an id, name and question"),
        ({"criteria": [{"id": "a"}, {"id": "a"}]}, "occurs twice"),
        ({"criteria": [{"id": "a"}, {"id": "doc_id"}]}, "another column"),
        ({"criteria": [], "gamma": [], "beta": []}, "no criteria"),
        ({"gamma": [1.0]}, r"gamma has shape \(1,\), but there are 2 criteria"),
        ({"gamma": [1.0, 0.0]}, "not above 0"),
        ({"gamma": [1.0, float("nan")]}, "not a finite number"),
        ({"beta": [0.0, "1"]}, "beta holds '1'"),
        ({"beta": [0.0, True]}, "beta holds True"),
        ({"beta": 3}, "beta is missing or not a list"),
        ({"rounded": "yes"}, "rounded"),
        ({"link": "affine"}, "link is not an object"),
    ],
)
def test_refused_documents(tmp_path, change, message):
    good = {"criteria": [{"id": "a"}, {"id": "b"}], "gamma": [1.0, 1.0], "beta": [0.0, 0.0]}
    assert Items.from_json(good).ids == ("a", "b")
    path = tmp_path / "items.json"
    path.write_text(json.dumps(good | change))
    with pytest.raises(InputError, match=message) as caught:
        load_items(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_refused_files(tmp_path):
    with pytest.raises(InputError, match=r"bright-gpt-oss-120b, .*nanobeir-qwen3\.5-397b"):
        load_items("nanobeir")
    with pytest.raises(InputError, match="neither a file"):
        load_items(tmp_path)  # a folder without items.json
    for content in (b"{", b"\xff\xfe", b""):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(InputError, match="not JSON"):
            load_items(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InputError, match="not a JSON object"):
        load_items(tmp_path / "x.json")


def test_an_installed_copy_finds_them_by_name(tmp_path):
    """The package laid out as pyproject has the wheel, where no source tree is near."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = wheel["targets"]["wheel"]
    skip = shutil.ignore_patterns("__pycache__")
    for package in wheel["packages"]:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=skip)
    for source, target in wheel["force-include"].items():
        shutil.copytree(ROOT / source, tmp_path / target, ignore=skip)
    code = (
        "import rcp_bayes, rcp_bayes.items as i; print(rcp_bayes.__file__)\n"
        "print(*i.shipped_items()); print(i.load_items('bright-qwen3.5-397b').beta[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    where, names, value = done.stdout.split("\n")[:3]
    assert where.startswith(str(tmp_path))
    assert names.split() == sorted(FITS) and value == "-3.22"
