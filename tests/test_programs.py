"""Programs that are compiled while something else goes on, and what is kept of them for the next process."""

import gc
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import point_goal
from small_runs import assert_same_run, config

from aimrl import agents, nn, programs, rewards
from aimrl.envs import vector
from aimrl.envs.goals import GoalTask, Near, Never, Sparse
from aimrl.rewards.aim import AIM
from aimrl.train import _ROOMS, make_round, train


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """An empty folder for what is kept."""
    monkeypatch.setattr(programs, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "traced"


class Doubler:
    """Doubles a state and tells a number; counts how often it is traced, and by whom."""

    def __init__(self) -> None:
        self.by: list[threading.Thread] = []

    def __call__(self, state: dict[str, Any], add: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.by.append(threading.current_thread())
        state = {"x": 2 * state["x"] + add}
        return state, {"sum": state["x"].sum(), "added": add}


def answer(early: programs.Step) -> tuple[list[float], float, float]:
    state, numbers = early({"x": jnp.array([1.0, 2.0, 5.0])}, jnp.float32(1.0))
    return np.asarray(state["x"]).tolist(), float(numbers["sum"]), float(numbers["added"])


def start(f: Any, key: str | None = None) -> programs.Step:
    return programs.compile_early(f, {"x": jnp.arange(3.0)}, jnp.float32(0.0), key=key)


RIGHT = ([3.0, 5.0, 11.0], 19.0, 1.0)


# --- ready early -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "a"])
def test_a_program_compiled_early_is_traced_once_and_not_by_the_caller(key):
    f = Doubler()
    early = start(f, key)
    assert [answer(early), answer(early)] == [RIGHT, RIGHT]
    assert len(f.by) == 1
    assert f.by[0] is not threading.current_thread()


@pytest.mark.parametrize("key", [None, "a"])
def test_its_failure_is_the_first_callers(key):
    def wrong(state, add):
        raise ValueError("not today")

    early = start(wrong, key)
    with pytest.raises(ValueError, match="not today"):
        answer(early)


@pytest.mark.parametrize("key", [None, "a"])
def test_the_state_is_given_up(key):
    early, state, add = start(Doubler(), key), {"x": jnp.ones(3)}, jnp.float32(1.0)
    early(state, add)
    assert state["x"].is_deleted()
    assert not add.is_deleted()


def test_garbage_is_not_looked_for_while_a_program_is_traced_and_is_again_afterwards():
    for thread in threading.enumerate():
        if thread.name.startswith("beside"):  # of a test before this one, whose programs nobody waited for
            thread.join()
    looked = []
    early = programs.compile_early(lambda x: (looked.append(gc.isenabled()) or x, {}), jnp.zeros(2))
    early(jnp.ones(2))
    assert (looked, gc.isenabled()) == ([False], True)


# --- kept --------------------------------------------------------------------------------------------------------------------------------


def test_a_kept_program_is_not_traced_again_and_answers_the_same(kept):
    first, second = Doubler(), Doubler()
    assert answer(start(first, "a")) == RIGHT
    assert [p.name for p in kept.iterdir()] == ["a"]
    assert answer(start(second, "a")) == RIGHT
    assert second.by == []
    assert answer(start(second, "b")) == RIGHT
    assert len(second.by) == 1


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], lambda b: b * 2])
def test_a_damaged_file_is_traced_anew_and_mended(kept, damage):
    answer(start(Doubler(), "a"))
    whole = (kept / "a").read_bytes()
    (kept / "a").write_bytes(damage(whole))
    again = Doubler()
    assert answer(start(again, "a")) == RIGHT
    assert len(again.by) == 1
    answer(start(again, "a"))
    assert len(again.by) == 1, "mended"


def test_bytes_with_the_right_digest_that_are_no_program_are_traced_anew(kept):
    kept.mkdir(parents=True)
    (kept / "a").write_bytes(programs._packed(["sum", "added"], b"not a program"))
    assert answer(start(Doubler(), "a")) == RIGHT


def test_a_folder_that_can_not_be_made_costs_nothing_but_time(kept):
    kept.parent.parent.mkdir(exist_ok=True)
    kept.parent.write_text("a file in the way")
    f = Doubler()
    assert [answer(start(f, "a")), answer(start(f, "a"))] == [RIGHT, RIGHT]
    assert len(f.by) == 2


def test_a_disk_that_fills_up_leaves_nothing_behind(kept, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs.os, "replace", full)
    assert answer(start(Doubler(), "a")) == RIGHT
    assert list(kept.iterdir()) == []


def test_what_calls_python_is_not_kept_but_works(kept):
    def f(state, add):
        x = jax.pure_callback(lambda x: 2 * np.asarray(x), jax.ShapeDtypeStruct((3,), np.float32), state["x"]) + add
        return {"x": x}, {"sum": x.sum(), "added": add}

    assert answer(start(f, "a")) == RIGHT
    assert not kept.exists()


# --- under which key ---------------------------------------------------------------------------------------------------------------------

STATE = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}


def key(made_of: Any = 1, rooms: tuple[str, ...] = (), state: Any = STATE) -> str | None:
    return programs.key_of(made_of, rooms, state)


def test_equal_settings_have_one_key_and_different_ones_have_others():
    settings = [1, 1.0, True, "1", None, (1,), [1], (1, 2), {"a": 1}, np.arange(3), np.arange(4), np.arange(3.0), np.float32(1)]
    settings += [agents.make("td3"), agents.make("td3", tau=0.01), agents.make("sac"), rewards.make("aim"), rewards.make("aim+r")]
    keys = [key(x) for x in settings]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key(agents.make("td3")) == key(agents.make("td3"))
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert key({"a": 1, 2: None}) == key({2: None, "a": 1})  # keys that can't be compared


def test_other_shapes_types_and_structures_are_other_programs():
    others = [{"x": jax.ShapeDtypeStruct((4,), jnp.float32)}, {"x": jax.ShapeDtypeStruct((3,), jnp.int32)}, {"y": STATE["x"]}, [STATE["x"]]]
    assert len({key(state=s) for s in [STATE, *others]}) == 5


def test_jaxs_own_settings_are_part_of_it():
    before = key()
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert key() != before
    finally:
        jax.config.update("jax_default_matmul_precision", None)


class Mine(AIM):
    """A reward from outside the package, whose code the key can't know."""


@pytest.mark.parametrize("x", [Mine(), lambda a, b: a, object(), print, (1, object()), {"a": len}, AIM])
def test_what_does_not_tell_by_its_value_what_it_does_has_no_key(x):
    assert key(x) is None


@pytest.mark.parametrize(
    ("home", "name", "other"),
    [
        (AIM, "reward", lambda self, *_: 0.0),
        (nn, "polyak", lambda target, online, rate: target),
        (nn, "_WIDE", 64),
        (nn.MLP, "__call__", lambda self, x: x),
        (nn, "_rounded_product", jax.custom_vjp(lambda x, w: x)),
        (rewards.base.Reward, "scale", property(lambda self: 2.0)),
    ],
)
def test_code_or_a_number_replaced_at_run_time_is_another_program(monkeypatch, home, name, other):
    rooms = ("aimrl.nn", "aimrl.rewards")
    before = key(rooms=rooms)
    with monkeypatch.context() as m:
        m.setattr(home, name, other, raising=False)
        assert key(rooms=rooms) != before
    assert key(rooms=rooms) == before


def test_a_replaced_function_is_known_by_what_it_captured(monkeypatch):
    def scaled(by: float):
        return lambda target, online, rate: by * target

    keys = set()
    for by in (1.0, 2.0, 2.0):
        monkeypatch.setattr(nn, "polyak", scaled(by))
        keys.add(key(rooms=("aimrl.nn",)))
    assert len(keys) == 2


def test_the_key_of_a_round_is_the_same_in_every_process():
    """Hashes of strings, and so the order of sets, differ between processes."""
    code = (
        "from aimrl import programs; from aimrl.config import make_config; from aimrl.types import GoalSpec\n"
        "from aimrl.train import _ROOMS, fresh, make_round; import jax, sys\n"
        "from aimrl.envs.goals import GoalTask, Near, Never, Sparse\n"
        "near = Near(0.05); task = GoalTask(Sparse(near), near, Never(), False, True, True)\n"
        "c = make_config('x', steps=2_000); spec = GoalSpec(5, 3, 2, 10); r = make_round(c, spec, task)\n"
        "print(programs.key_of(r, _ROOMS, *jax.eval_shape(lambda: fresh(c, spec, r))))"
    )
    printed = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(printed) == 1
    assert len(printed.pop().strip()) == 64


def test_a_round_whose_task_only_python_can_judge_has_no_key():
    c = config()
    near = Near(0.05)
    plain = GoalTask(Sparse(near), near, Never(), False, True, True)
    theirs = GoalTask(lambda a, g: 0.0, near, Never(), False, False, True)
    with vector.make(point_goal, 1, 0) as env:
        spec = env.spec
    assert programs.key_of(make_round(c, spec, plain), _ROOMS) is not None
    assert programs.key_of(make_round(c, spec, theirs), _ROOMS) is None


def test_a_run_from_kept_programs_is_the_run_that_traced_them(kept, tmp_path, monkeypatch):
    c = config()
    train(c, tmp_path / "traced", env="FetchReach-v4")
    assert len(list(kept.iterdir())) == 2  # the updates, and storing episodes
    monkeypatch.setattr(programs.export, "export", lambda *_: pytest.fail("traced again"))
    train(c, tmp_path / "again", env="FetchReach-v4")
    assert_same_run(tmp_path / "traced", tmp_path / "again", c.steps)


# --- the compiler's options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "precision", "own"), [(2, "float32", False), (1, "float32", True), (2, "bfloat16", True)])
def test_products_of_several_cores_in_float32_are_left_to_the_kernels_that_share_them(monkeypatch, n, precision, own):
    monkeypatch.setattr(programs, "cores", lambda: n)
    x = jnp.ones((256, 256))
    program = jax.jit(lambda x: x @ x, compiler_options=programs.quickly_compiled.__wrapped__(precision)).lower(x).compile()
    assert ("__ynn_fusion" in program.as_text()) == own
    np.testing.assert_allclose(program(x), 256.0)


def test_an_option_that_this_xla_has_not_is_left_out(monkeypatch):
    assert programs._known({"xla_backend_optimization_level": 1})
    assert not programs._known({"xla_cpu_gone_tomorrow": ""})
    monkeypatch.setattr(programs, "_known", lambda options: False)
    assert programs.quickly_compiled.__wrapped__() == {"xla_backend_optimization_level": 1}
