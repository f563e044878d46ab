"""The wheel: it builds, holds what it must, installs into an empty environment and answers."""

import json
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
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


def test_every_dependency_is_pinned_in_the_constraints():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        r for rows in [project["dependencies"], *project["optional-dependencies"].values()] for r in rows if not r.startswith("aimrl[")
    ]
    normal = lambda text: text.split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip().lower().replace("_", "-")  # noqa: E731
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip() and not line.startswith("#")]
    pinned = {normal(line) for line in lines if "==" in line}
    assert {normal(r) for r in asked} <= pinned
