"""Programs that are compiled while something else goes on, and what is kept of them for the next process."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import point_goal
from small_runs import assert_same_run, config

from aimrl import agents, cli, nn, programs, rewards
from aimrl.envs import vector
from aimrl.envs.goals import GoalTask, Near, Never, Sparse
from aimrl.rewards.aim import AIM
from aimrl.train import _ROOMS, make_round, train


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """An empty folder for what is kept."""
    monkeypatch.setattr(programs, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "compiled"


def finished() -> None:
    """Wait for what goes on in the background: programs being compiled and written."""
    for thread in threading.enumerate():
        if thread.name.startswith("beside"):
            thread.join()


class Doubler:
    """Doubles a state and tells a number; counts how often it is traced, and by whom."""

    def __init__(self) -> None:
        self.by: list[threading.Thread] = []

    def __call__(self, state: dict[str, Any], add: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.by.append(threading.current_thread())
        state = {"x": 2 * state["x"] + add}
        return state, {"sum": state["x"].sum(), "added": add}


def answer(early: programs.Step) -> tuple[list[float], float, float]:
    state, numbers = early({"x": jnp.array([1.0, 2.0, 5.0])}, np.float32(1.0))
    finished()
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
    finished()  # also what a test before this one began
    looked = []
    early = programs.compile_early(lambda x: (looked.append(gc.isenabled()) or x, {}), jnp.zeros(2))
    early(jnp.ones(2))
    assert (looked, gc.isenabled()) == ([False], True)


# --- kept --------------------------------------------------------------------------------------------------------------------------------


def test_a_kept_program_is_not_traced_again_and_answers_the_same(kept):
    first, second = Doubler(), Doubler()
    assert answer(start(first, "a")) == RIGHT
    assert len(list(kept.iterdir())) == 1
    assert answer(start(second, "a")) == RIGHT
    assert second.by == []
    assert answer(start(second, "b")) == RIGHT
    assert len(second.by) == 1


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], lambda b: b * 2])
def test_a_damaged_file_is_traced_anew_and_mended(kept, damage):
    answer(start(Doubler(), "a"))
    (file,) = kept.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    again = Doubler()
    assert answer(start(again, "a")) == RIGHT
    assert len(again.by) == 1
    answer(start(again, "a"))
    assert len(again.by) == 1, "mended"


def test_bytes_with_the_right_digest_that_are_no_program_are_traced_anew(kept):
    answer(start(Doubler(), "a"))
    (file,) = kept.iterdir()
    file.write_bytes(programs._packed(["sum", "added"], b"not a program"))
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


def test_a_kept_program_that_was_lost_is_kept_again_and_runs(kept, tmp_path):
    """What JAX loads from its own cache it writes without its code: such a copy failed when it was run."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        for _ in range(2):
            assert answer(start(Doubler(), "a")) == RIGHT
            (file,) = kept.iterdir()
            file.rename(tmp_path / "lost")
        (tmp_path / "lost").rename(file)
        f = Doubler()
        assert answer(start(f, "a")) == RIGHT
        assert f.by == []
    finally:
        programs.use_compilation_cache()


def test_jax_is_left_its_own_programs_but_no_copies_of_those_kept_here(kept, monkeypatch):
    own = Path(jax.config.values["jax_compilation_cache_dir"])
    own.mkdir(parents=True, exist_ok=True)
    others = own / "jit_flat-of-somebody-else"
    others.write_text("")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    monkeypatch.setattr(programs.uuid, "uuid4", lambda: SimpleNamespace(hex=f"tested{os.getpid()}"))
    try:
        for _ in range(2):
            assert answer(start(Doubler(), "a")) == RIGHT
            assert not list(own.glob(f"jit_kept_tested{os.getpid()}-*"))
        assert others.exists()
    finally:
        others.unlink()
        programs.use_compilation_cache()


def test_a_jax_that_runs_loaded_programs_otherwise_compiles_them_anew(kept, monkeypatch):
    answer(start(Doubler(), "a"))
    monkeypatch.setattr(programs, "get_backend", lambda: SimpleNamespace(deserialize_executable=lambda *_: object()))
    f = Doubler()
    assert answer(start(f, "a")) == RIGHT
    assert len(f.by) == 1


def test_another_users_program_is_not_run(kept, monkeypatch):
    answer(start(Doubler(), "a"))
    me = os.getuid()
    monkeypatch.setattr(programs.os, "getuid", lambda: me + 1)
    f = Doubler()
    assert answer(start(f, "a")) == RIGHT
    assert len(f.by) == 1


def test_compiled_code_is_for_one_kind_of_processor_number_of_cores_and_options(monkeypatch):
    files = {programs._here("a", options) for options in (None, {"xla_a": 1}, {"xla_a": 0})}
    files.add(programs._here("b", None))
    monkeypatch.setattr(programs, "cores", lambda: 1_000)
    files.add(programs._here("a", None))
    monkeypatch.setattr(programs, "processor", lambda: {"flags": "sse9"})
    files.add(programs._here("a", None))
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")
    files.add(programs._here("a", None))
    assert len(files) == 7


def test_the_programs_asked_for_last_are_kept(kept, monkeypatch):
    monkeypatch.setattr(programs, "_KEPT", 2)
    began = time.time() - 100
    for i, key in enumerate(["a", "b", "a", "c"]):
        answer(start(Doubler(), key))
        os.utime(kept / programs._here(key, None), (began + i, began + i))  # clocks of file systems are coarse
    assert {p.name for p in kept.iterdir()} == {programs._here(key, None) for key in "ac"}


def test_a_program_that_makes_something_else_leaves_its_arguments(kept):
    makes = (jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32))
    for _ in range(2):  # compiled and kept
        early = programs.compile_early(lambda x: ((jnp.stack([x, x]), x.sum()), {}), jnp.zeros(3), key="a", makes=makes)
        x = jnp.array([1.0, 2.0, 4.0])
        (twice, total), numbers = early(x)
        finished()
        assert (np.asarray(twice).tolist(), float(total), numbers) == ([[1.0, 2.0, 4.0]] * 2, 7.0, {})
        assert not x.is_deleted()


def expecting(what: str, keys: str, f: Any) -> programs.Expected:
    """A process that asks for what, and then for the programs of these keys."""
    expected = programs.Expected(what)
    for key in keys:
        early = programs.compile_early(f, {"x": jnp.arange(3.0)}, np.float32(0.0), key=key, expected=expected)
        assert answer(early) == RIGHT
    expected.note()
    return expected


def test_what_was_needed_last_time_is_loaded_before_it_is_asked_for(kept, monkeypatch):
    expecting("this", "ab", Doubler())
    loads = []
    load = programs._load
    monkeypatch.setattr(programs, "_load", lambda file: loads.append(threading.current_thread()) or load(file))
    programs.Expected("that")
    assert loads == []
    programs.Expected("this")
    finished()
    assert len(loads) == 2
    assert threading.current_thread() not in loads
    f = Doubler()
    expecting("this", "ab", f)
    assert (f.by, len(loads)) == ([], 4), "each program once a process"


def test_a_wrong_guess_is_no_harm_and_not_made_twice(kept):
    f = Doubler()
    for keys, known in (("ab", ""), ("c", "ab"), ("c", "c")):
        expected = programs.Expected("this")
        assert sorted(expected._loading) == sorted(programs._here(key, None) for key in known)
        expecting("this", keys, f)
    assert len(f.by) == 3


@pytest.mark.parametrize("text", ["", "../../etc/passwd", "x" * 64, "\0", b"\xff\xfe", "0" * 64])
def test_a_note_that_says_nothing_is_not_followed(kept, text):
    expecting("this", "a", Doubler())
    (note,) = (kept.parent / "expected").iterdir()
    note.write_bytes(text if isinstance(text, bytes) else text.encode())
    f = Doubler()
    expecting("this", "a", f)
    assert f.by == []


def test_what_calls_python_is_not_kept_but_works(kept):
    def f(state, add):
        x = jax.pure_callback(lambda x: 2 * np.asarray(x), jax.ShapeDtypeStruct((3,), np.float32), state["x"]) + add
        return {"x": x}, {"sum": x.sum(), "added": add}

    assert answer(start(f, "a")) == RIGHT
    assert not kept.exists()


# --- under which key ---------------------------------------------------------------------------------------------------------------------

STATE = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}


def key(made_of: Any = 1, rooms: tuple[str, ...] = (), state: Any = STATE) -> str | None:
    return programs.key_of(made_of, programs.code_of(rooms), state)


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
        (nn, "ACTIVATIONS", nn.ACTIVATIONS | {"relu": jax.nn.leaky_relu}),
        (nn, "ACTIVATIONS", nn.ACTIVATIONS | {"relu": lambda x: 0.9 * x}),
    ],
)
def test_code_or_a_number_replaced_at_run_time_is_another_program(monkeypatch, home, name, other):
    rooms = ("aimrl.nn", "aimrl.rewards")
    before = key(rooms=rooms)
    with monkeypatch.context() as m:
        m.setattr(home, name, other, raising=False)
        assert key(rooms=rooms) != before
    assert key(rooms=rooms) == before


def test_the_device_may_be_named_by_its_platform():
    with jax.default_device("cpu"):
        named = programs._here("key", None)
    assert named == programs._here("key", None)


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
        "print(programs.key_of(r, programs.code_of(_ROOMS), *jax.eval_shape(lambda: fresh(c, spec, r, jax.random.PRNGKey(0)))))"
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
    code = programs.code_of(_ROOMS)
    assert programs.key_of(make_round(c, spec, plain), code) is not None
    assert programs.key_of(make_round(c, spec, theirs), code) is None


def test_the_command_expects_the_programs_of_the_same_words_whatever_the_seed_and_folder(kept, tmp_path, monkeypatch):
    words = ["train", "FetchReach-v4", "--steps", "400", "--learning-starts", "200", "--eval-episodes", "2", "--quiet"]
    assert cli.main([*words, "--seed", "1", "--out", str(tmp_path / "1")]) == 0
    finished()
    monkeypatch.setattr(jax.stages.Traced, "lower", lambda *_, **__: pytest.fail("traced again"))
    taken: list[bool] = []
    take = programs.Expected.take
    monkeypatch.setattr(programs.Expected, "take", lambda self, name: taken.append(name in self._loading) or take(self, name))
    assert cli.main([*words, f"--out={tmp_path / '2'}", "--seed=2"]) == 0
    assert taken == [True] * 3  # the updates, storing episodes, beginning
    evaluated = [json.loads((tmp_path / name / "evals.jsonl").read_text().splitlines()[-1]) for name in "12"]
    assert evaluated[0]["return"] != evaluated[1]["return"], "another seed is another run"


def test_a_run_from_kept_programs_is_the_run_that_traced_them(kept, tmp_path, monkeypatch):
    c = config()
    train(c, tmp_path / "traced", env="FetchReach-v4")
    finished()
    assert len(list(kept.iterdir())) == 3  # beginning, the updates, and storing episodes
    monkeypatch.setattr(jax.stages.Traced, "lower", lambda *_, **__: pytest.fail("traced again"))
    train(c, tmp_path / "again", env="FetchReach-v4")
    assert_same_run(tmp_path / "traced", tmp_path / "again", c.steps)


# --- the compiler's options --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "flags", "precision", "own"),
    [(2, "avx2", "float32", False), (1, "avx2", "float32", True), (1, "avx2 avx512f", "float32", False), (2, "avx2", "bfloat16", True)],
)
def test_float32_products_are_left_to_the_kernels_that_are_faster_on_this_processor(monkeypatch, n, flags, precision, own):
    monkeypatch.setattr(programs, "cores", lambda: n)
    monkeypatch.setattr(programs, "processor", lambda: {"flags": flags})
    x = jnp.ones((256, 256))
    program = jax.jit(lambda x: x @ x, compiler_options=programs.quickly_compiled(precision)).lower(x).compile()
    assert ("__ynn_fusion" in program.as_text()) == own
    np.testing.assert_allclose(program(x), 256.0)


def test_an_option_that_this_xla_has_not_is_left_out(monkeypatch):
    assert programs._compiles({"xla_backend_optimization_level": 1})
    assert not programs._compiles({"xla_cpu_gone_tomorrow": ""})
    monkeypatch.setattr(programs, "cores", lambda: 2)
    monkeypatch.setattr(programs, "_compiles", lambda options: programs._OTHER_KERNELS not in options)
    monkeypatch.setattr(programs, "_known", programs._known.__wrapped__)
    assert programs.quickly_compiled() == {"xla_backend_optimization_level": 1}
    assert programs.roughly_compiled() == {"xla_backend_optimization_level": 0, programs._NEW_EMITTERS: False}
