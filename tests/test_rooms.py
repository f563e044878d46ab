"""The order of the rooms: a file imports only from rooms above its own, so that data flows one way and every room can be read alone."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "aimrl"
# From top to bottom. `__init__` and `__main__` are doors, not rooms: they may lead anywhere.
ROOMS = [
    *("types", "config", "programs", "nn", "theory", "envs", "replay", "rewards", "agents", "collect", "evaluate", "runs", "progress"),
    *("train", "plots_grid", "grid", "videos", "look", "sweep", "tune", "stats", "plots", "report", "watch", "paper"),
    *("wrapper", "sb3", "bench", "cli"),
]
LIGHT = ("jax", "scipy", "gymnasium", "equinox", "optax", "matplotlib", "numpy", "torch", "envpool")  # `aimrl --help` answers at once
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> set[str]:
    """Dotted names of everything imported at any depth, except for type checkers."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            found |= set().union(*(imports(n) for n in node.orelse)) if node.orelse else set()
        else:
            found |= imports(node)
    return found


def wrong_way(path: Path) -> list[str]:
    """Imports of this file that lead down, or to a room that has no place."""
    own = ROOMS.index(room_of(path))
    rooms = {name.split(".")[1] for name in imports(ast.parse(path.read_text(encoding="utf-8"))) if name.startswith("aimrl.")}
    rooms -= {"__version__"}
    return [f"{room_of(path)} imports {room}" for room in sorted(rooms) if room not in ROOMS or ROOMS.index(room) > own]


def test_every_file_has_a_place_in_the_order_of_rooms():
    assert {room_of(path) for path in FILES} - {"__init__", "__main__"} <= set(ROOMS)


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != PACKAGE or not p.stem.startswith("__")], ids=lambda p: p.stem)
def test_a_file_imports_only_from_rooms_above_it(path):
    assert wrong_way(path) == []


def test_an_import_from_a_room_below_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "agents").mkdir()
    bad = tmp_path / "agents" / "td3.py"
    bad.write_text("def f():\n    from aimrl.train import train\n    from aimrl import nn, sweep\n")
    monkeypatch.setattr("test_rooms.PACKAGE", tmp_path)
    assert wrong_way(bad) == ["agents imports sweep", "agents imports train"]


def test_agents_know_neither_environments_nor_rewards():
    for path in (PACKAGE / "agents").glob("*.py"):
        found = imports(ast.parse(path.read_text(encoding="utf-8")))
        assert not {name for name in found if name.startswith(("aimrl.envs", "aimrl.rewards", "aimrl.replay"))}, path.name


def test_the_command_line_loads_nothing_heavy_at_its_start():
    def at_start(path: Path) -> set[str]:
        body = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.Import | ast.ImportFrom)]
        return imports(ast.Module(body, []))

    for path in [*(PACKAGE / "cli").glob("*.py"), PACKAGE / "config.py", PACKAGE / "types.py", PACKAGE / "__init__.py"]:
        heavy = {name for name in at_start(path) if name.split(".")[0] in LIGHT}
        assert not heavy, f"{path.name} loads {heavy}"
