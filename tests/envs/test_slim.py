"""EnvPool is imported without the code of families that nobody asked for, and nothing of it is lost."""

import json
import subprocess
import sys

import pytest

LOOK = """
import json, sys
from aimrl.envs import slim
pool = slim.envpool()
loaded = [name for name in sys.modules if name == "matplotlib" or name.startswith("envpool.")]
made = {task: str(pool.make_gymnasium(task, num_envs=1).action_space.shape) for task in ("FetchReach-v4", "CartPole-v1", "Game2048-v1")}
import envpool, envpool.jumanji
print(json.dumps([sorted(pool.list_all_envs()), loaded, made, envpool.jumanji.__file__, envpool is pool is slim.envpool()]))
"""


def python(program):
    return json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def test_every_task_is_there_and_a_family_is_loaded_when_one_of_its_tasks_is_made():
    tasks, loaded, made, family, same = python(LOOK)
    assert tasks == python("import envpool, json; print(json.dumps(sorted(envpool.list_all_envs())))")
    assert "matplotlib" not in loaded
    assert not any(name.endswith("_envpool") for name in loaded)  # the families' C++ code
    assert made == {"FetchReach-v4": "(4,)", "CartPole-v1": "()", "Game2048-v1": "()"}
    assert family.endswith("__init__.py")  # and not the empty one that stood in for it
    assert same


def test_a_version_that_cannot_be_read_like_that_is_imported_whole(tmp_path):
    """Its registration asks for something of its family's code."""
    for name, text in {
        "__init__.py": "from envpool import entry",
        "entry.py": "import envpool.toys.registration",
        "toys/__init__.py": "speed = 3",
        "toys/registration.py": "from envpool.toys import speed",
    }.items():
        path = tmp_path / "envpool" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    asks = "from aimrl.envs import slim; print(slim.envpool().toys.registration.speed)"
    assert python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {asks}") == 3


def test_one_that_was_imported_before_is_left_as_it_is():
    assert python("import envpool; from aimrl.envs import slim; print('true' if slim.envpool() is envpool else 'false')")


@pytest.mark.parametrize("jax_first", [False, True])
def test_envpools_face_for_jax_is_left_out_only_where_jax_is_not_loaded(jax_first):
    load = "import json, sys, jax" if jax_first else "import json, sys"
    make = "from aimrl.envs import vector; vector.make('FetchReach-v4', 1, 0).reset()"
    loaded = python(f"{load}\n{make}\nprint(json.dumps([name in sys.modules for name in ('jax', 'envpool.python.lax')]))")
    assert loaded == [jax_first, jax_first]
