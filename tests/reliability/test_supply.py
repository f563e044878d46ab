"""The wheel: it builds, holds what it must, installs into an empty environment and answers."""

import json
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is written into the checkout, in an isolated environment: this needs a package index."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place / name)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(place / "dist"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((place / "dist").glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_assets_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("aimrl/py.typed", "aimrl/assets/report.css", "aimrl/assets/report.js", "aimrl/cli/__init__.py"):
        assert name in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"aimrl"}
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment_and_answers(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(packages), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    # The dependencies are this environment's: a path file lends them, after the wheel's own copy of aimrl; the checkout is not among them.
    (packages / "lent.pth").write_text("\n".join(site.getsitepackages()))
    ask = lambda *words: subprocess.run([python, "-P", *words], capture_output=True, text=True, timeout=600, cwd=tmp_path)  # noqa: E731
    where = ask("-c", "import aimrl; print(aimrl.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(packages), where.stderr
    overview = ask("-m", "aimrl", "--help")
    assert overview.returncode == 0
    assert "aimrl COMMAND" in overview.stdout
    theory = ask("-m", "aimrl", "theory", "room", "--json")
    assert theory.returncode == 0, theory.stderr
    answer = json.loads(theory.stdout.splitlines()[-1])
    assert answer["w1_primal"] == pytest.approx(answer["w1_closed_form"], rel=1e-6)


def normal(requirement: str) -> str:
    """The package's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement.strip())[0]).lower()


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Name → version of every pinned line."""
    return {normal(line): line.split("==")[1].split()[0] for line in lines if re.match(r"[\w.-]+(\[\w+\])?==", line)}


def asked(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    rows = [project["dependencies"], *(optional[name] for name in extras or optional)]
    return {normal(r) for group in rows for r in group if not r.startswith("aimrl[")}


def test_every_dependency_is_pinned_in_the_constraints():
    assert asked() <= pins((ROOT / "constraints.txt").read_text().splitlines()).keys()


def test_the_hashed_list_pins_the_same_versions_and_every_line_of_it_has_its_hashes():
    text = (ROOT / "requirements-hashed.txt").read_text()
    found = pins(text.splitlines())
    tested = pins((ROOT / "constraints.txt").read_text().splitlines())
    assert asked("envpool") <= found.keys()
    assert found.keys() - tested.keys() <= {"setuptools"}  # which `pip freeze` leaves out: environments bring their own
    assert {name: version for name, version in found.items() if name in tested} == {n: v for n, v in tested.items() if n in found}
    packages = re.split(r"\n(?=\S)", text.strip())  # a package's hashes are indented below it
    assert len(packages) == len(found)
    for package in packages:
        first, *hashes = package.replace("\\\n", "\n").splitlines()
        assert "==" in first
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64} ?", line) for line in hashes), first
