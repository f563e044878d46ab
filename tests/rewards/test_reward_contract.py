"""Every registered reward under one table, and the registry's answers to bad input."""

import typing
from importlib.metadata import EntryPoint

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reward_batches import SPEC, random_batch

from aimrl import nn, rewards
from aimrl.rewards.base import Reward, total_reward
from aimrl.rewards.common import Activation
from aimrl.rewards.dense import Dense
from aimrl.rewards.smirl import SMiRL
from aimrl.types import UserError

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # these programs run twice: compiling is the cost

VARIANTS = [
    *[(name, {}) for name in rewards.NAMES],
    ("aim", {"bound": "one-sided", "form": "to-goal", "normalise": "range", "standardise": True}),
    ("aim", {"bound": "expected", "form": "shaped", "normalise": "none", "target": "visited"}),
    ("aim", {"target": "examples", "examples": [[0.7, 0.7, 0.7], [0.5, 0.9, 0.7]], "goal_term": False}),
    ("dense", {"normalise": True}),
    ("rnd", {"warmup": 0, "standardise": True, "normalise": "none"}),
    ("mc", {"both_directions": False, "unit": "step", "normalise": "std", "standardise": True}),
    ("smirl", {"normalise": "std"}),
    ("gail", {"gradient_weight": 0.0, "normalise": "std", "standardise": True}),
    ("disco", {"covariance": [0.1, 0.2, 0.3], "constant": True, "normalise": "std"}),
    ("wgan", {"standardise": True, "normalise": "none"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{n}-{'-'.join(o)}" for n, o in VARIANTS])
def test_every_reward_learns_under_jit_and_vmap_over_seeds_with_finite_output(name, options):
    reward = rewards.make(name, **options)
    batches, batch = random_batch(1, (2, 8)), random_batch(2, (3, 4))

    def one(key):
        state, metrics = reward.update(reward.init(key, SPEC), batches, key)
        return total_reward(reward, state, batch), metrics

    seeds = jax.jit(lambda keys: eqx.filter_vmap(one)(keys), compiler_options=QUICK)
    keys = jax.random.split(jax.random.key(0), 2)
    values, metrics = seeds(keys)
    assert values.shape == (2, 3, 4)
    assert values.dtype == jnp.float32
    assert jnp.isfinite(values).all()
    assert all(jnp.isfinite(v).all() and v.shape == (2,) for v in metrics.values())
    np.testing.assert_array_equal(seeds(keys[::-1])[0][::-1], values)  # the same seed gives the same reward, whatever runs beside it


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=[f"{n}-{'-'.join(o)}" for n, o in VARIANTS])
def test_a_scan_can_carry_the_state_and_one_transition_is_a_batch_without_dimensions(name, options):
    reward, key = rewards.make(name, **options), jax.random.key(0)
    state = eqx.filter_eval_shape(reward.init, key, SPEC)
    after, _ = eqx.filter_eval_shape(reward.update, state, random_batch(1, (2, 8)), key)
    assert eqx.tree_equal(after, state)
    assert eqx.filter_eval_shape(reward.reward, state, random_batch(2, ())).shape == ()


OF_STATES = [name for name in rewards.NAMES if name != "sparse"]  # pay for what the agent achieved, whatever the task says


@pytest.mark.parametrize("name", OF_STATES)
def test_nan_in_gives_nan_out_in_that_row_only(name):
    reward = rewards.make(name, **({"warmup": 0} if name == "rnd" else {}))
    state = reward.init(jax.random.key(0), SPEC)
    batch = random_batch(3, (5,))
    bad = batch._replace(next_achieved=batch.next_achieved.at[2].set(jnp.nan))
    assert jnp.isnan(total_reward(reward, state, bad)).tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("name", OF_STATES)
def test_what_is_paid_depends_on_the_next_state_and_not_on_the_one_left(name):
    reward, key = rewards.make(name, **({"warmup": 0} if name == "rnd" else {})), jax.random.key(0)
    state, _ = jax.jit(reward.update, compiler_options=QUICK)(reward.init(key, SPEC), random_batch(1, (20, 16)), key)
    batch, other = random_batch(2, (8,)), random_batch(3, (8,))
    paid = reward.reward(state, batch)
    assert (reward.reward(state, batch._replace(next_achieved=other.next_achieved)) != paid).all()
    np.testing.assert_array_equal(reward.reward(state, batch._replace(achieved=other.achieved)), paid)


LEARNS_FROM = {  # of s and s′
    "aim": ["achieved", "next_achieved"],
    "mc": ["achieved"],
    "dense": ["next_achieved"],
    "rnd": ["next_achieved"],
    "gail": ["next_achieved"],
    "wgan": ["next_achieved"],
}


@pytest.mark.parametrize("name", LEARNS_FROM)
def test_updates_learn_from_the_states_that_the_loss_names(name):
    reward, key = rewards.make(name), jax.random.key(0)
    update = jax.jit(lambda batches: reward.update(reward.init(key, SPEC), batches, key)[0], compiler_options=QUICK)
    batches, other = random_batch(1, (2, 8)), random_batch(2, (2, 8))
    changed = {f: update(batches._replace(**{f: getattr(other, f)})) for f in ("achieved", "next_achieved")}
    assert [f for f, state in changed.items() if not eqx.tree_equal(state, update(batches))] == LEARNS_FROM[name]


def test_task_weights_are_the_authors():
    weights = {name: rewards.make(name).task_weight for name in rewards.NAMES}
    alone = {"aim", "dense", "fairl", "fairl-", "wgan"}
    assert weights == {name: 0.0 if name in alone else 1.0 for name in rewards.NAMES}


def test_total_reward_mixes_the_learned_and_the_task_reward():
    batch = random_batch(4, (6,))._replace(task_reward=jnp.arange(6.0))
    r = rewards.make("dense", task_weight=0.5, scale=3.0)
    distance = np.linalg.norm(np.asarray(batch.next_achieved - batch.goal), axis=-1)
    np.testing.assert_allclose(total_reward(r, r.init(jax.random.key(0), SPEC), batch), -3 * distance + 0.5 * np.arange(6), rtol=1e-5)


def test_options_are_checked_and_the_nearest_is_suggested():
    for call, words in [
        (lambda: rewards.make("amm"), "unknown reward 'amm': did you mean aim"),
        (lambda: rewards.make("aim", lerning_rate=1.0), "did you mean learning_rate"),
        (lambda: rewards.make("aim", bound="onesided"), "did you mean one-sided"),
        (lambda: rewards.make("aim", learning_rate="fast"), "takes a float, not 'fast'"),
        (lambda: rewards.make("aim", scale=float("nan")), "takes a float, not nan"),
        (lambda: rewards.make("aim", hidden=[64, 0]), "not (64, 0)"),
        (lambda: rewards.make("aim", standardise="False"), "takes a bool, not 'False'"),
        (lambda: rewards.make("rnd", activation="rellu"), "did you mean relu"),
        (lambda: rewards.make("os:system"), "unknown reward 'os:system'"),
        (lambda: rewards.make(3), "a reward is a name or a Reward object"),  # pyright: ignore[reportArgumentType]
        (lambda: rewards.make("aim", target="examples"), "go together"),
        (lambda: rewards.make("aim", target="examples", examples=[[float("nan")]]), "finite"),
        (lambda: rewards.make("aim", target="examples", examples=[["a"]]), "aim: examples must be a finite array"),
        (lambda: rewards.make("aim", target="examples", examples=[[1.0], [1.0, 2.0]]), "aim: examples must be a finite array"),
        (lambda: rewards.make("aim", target="visited", form="to-goal"), "to-goal"),
        (lambda: rewards.make("aim", target="examples", examples=[[1.0]]).init(jax.random.key(0), SPEC), "have 1 features, the goals 3"),
        (lambda: rewards.make("disco", covariance=[1.0, 2.0]).init(jax.random.key(0), SPEC), "doesn't fit goals of 3"),
        (lambda: rewards.make("disco", covariance=[1.0, -1.0, 1.0]).init(jax.random.key(0), SPEC), "positive definite"),
        (lambda: rewards.make("disco", covariance="x"), "disco: the covariance must be a number"),
        (lambda: rewards.make("disco", covariance=[[1.0], [1.0, 2.0]]), "disco: the covariance must be a number"),
        (lambda: rewards.make("aim", step_bound=10**400), "takes a float, not 1000"),
    ]:
        with pytest.raises(UserError) as error:
            call()
        assert words in str(error.value)
        assert "\n" not in str(error.value)


POSITIVE = {
    "aim": ["learning_rate", "step_bound", "cell", "cells"],
    "rnd": ["learning_rate", "embedding"],
    "mc": ["learning_rate"],
    "smirl": ["variance_floor"],
    "gail": ["learning_rate"],
    "fairl": ["learning_rate", "clip"],
    "disco": ["covariance"],
    "wgan": ["learning_rate"],
}
NOT_NEGATIVE = {
    "aim": ["lipschitz_weight", "margin", "target_std", "knee", "worst", "gamma"],
    "rnd": ["warmup"],
    "gail": ["smoothing", "gradient_weight"],
    "fairl": ["smoothing", "gradient_weight"],
    "wgan": ["gradient_weight", "margin", "target_std"],
}
ANY_SIGN = ["task_weight", "scale"]


@pytest.mark.parametrize("name", [name for name in rewards.NAMES if name not in ("aim+r", "fairl-")])  # other names of the same classes
def test_numbers_that_mean_nothing_are_refused_and_those_at_the_edge_are_taken(name):
    def refused(key, value, rule):
        with pytest.raises(UserError, match=f"^option '{key}' of reward '{name}' must {rule}, not {value}"):
            rewards.make(name, **{key: value})

    positive, not_negative = POSITIVE.get(name, []), NOT_NEGATIVE.get(name, [])
    assert {k for k, v in vars(rewards.make(name)).items() if type(v) in (int, float)} == {*positive, *not_negative, *ANY_SIGN}
    for key in positive:
        refused(key, 0, "be positive")
        refused(key, -1, "be positive")
    for key in not_negative:
        refused(key, -1, "not be negative")
        assert getattr(rewards.make(name, **{key: 0}), key) == 0
    for key in ANY_SIGN:
        refused(key, "-inf", "be finite")
        assert [getattr(rewards.make(name, **{key: value}), key) for value in (0, -1)] == [0, -1]


def test_ranges_with_an_upper_end_and_limits_that_may_be_infinite():
    for name, options, words in [
        ("gail", {"smoothing": 0.5}, "'smoothing' of reward 'gail' must be below 0.5, not 0.5"),
        ("aim", {"gamma": 1.5}, "'gamma' of reward 'aim' must be at most 1, not 1.5"),
        ("aim", {"learning_rate": "inf"}, "'learning_rate' of reward 'aim' must be finite, not inf"),
        (Dense(), {"scale": "inf"}, "'scale' of reward 'Dense' must be finite"),
        (SMiRL(variance_floor=0.0), {}, "'variance_floor' of reward 'SMiRL' must be positive"),
    ]:
        with pytest.raises(UserError, match=words):
            rewards.make(name, **options)
    assert rewards.make("aim", gamma=1, worst="inf").bounds()[0] == -np.inf
    assert rewards.make("fairl", clip="inf").clip == np.inf


@pytest.mark.parametrize("name", ["aim", "rnd", "mc", "gail", "fairl", "wgan", "disco"])
def test_goals_of_another_environment_are_refused_in_one_line(name):
    reward, other = rewards.make(name), random_batch(1, (2, 8), goal_dim=4)
    state = reward.init(jax.random.key(0), SPEC)
    for call in (lambda: reward.update(state, other, jax.random.key(1)), lambda: reward.reward(state, other)):
        with pytest.raises(UserError, match="made for goals of 3 features, but the batch has 4"):
            call()


def test_the_choices_of_activation_are_those_of_the_networks():
    assert set(typing.get_args(Activation)) == set(nn.ACTIVATIONS)


def test_whole_numbers_and_lists_of_a_config_file_become_what_the_fields_declare():
    assert rewards.make("aim", lipschitz_weight=10, hidden=[32, 32]) == rewards.make("aim", lipschitz_weight=10.0, hidden=(32, 32))


def test_rewards_that_need_episodes_say_so_when_given_single_transitions():
    batch = random_batch(5, (1, 4))._replace(prefix_mean=None, prefix_var=None, future=None, future_steps=None)
    for name in ("smirl", "mc", "gail", "fairl"):
        reward = rewards.make(name)
        with pytest.raises(UserError, match="needs whole episodes"):
            reward.update(reward.init(jax.random.key(0), SPEC), batch, jax.random.key(1))


def test_a_reward_object_is_taken_as_it_is_and_options_replace_its_fields():
    mine = Dense(scale=2.0)
    assert rewards.make(mine) is mine
    assert rewards.make(mine, task_weight=3.0) == Dense(scale=2.0, task_weight=3.0)


class Mine(Reward):
    strength: float = eqx.field(static=True, kw_only=True)
    task_weight: float = eqx.field(default=0.0, static=True)
    scale: float = eqx.field(default=1.0, static=True)

    def init(self, key, spec):
        return None

    def update(self, state, batches, key):
        return None, {}

    def reward(self, state, batch):
        return -self.strength * jnp.abs(batch.next_achieved - batch.goal).sum(-1)


def test_another_package_offers_its_reward_by_entry_point(monkeypatch):
    values = {"mine": f"{__name__}:Mine", "odd": "json:dumps", "gone": "no_such_package.rewards:Mine", "bare": "json:NoSuchReward"}
    offered = [EntryPoint(name, value, rewards.ENTRY_POINTS) for name, value in values.items()]
    monkeypatch.setattr(rewards, "entry_points", lambda group: offered)
    assert rewards.make("mine", strength=-2.0) == Mine(strength=-2.0)  # its options may mean anything
    for name, options, words in [
        ("mine", {}, "strength"),
        ("odd", {}, "not a subclass"),
        ("mime", {}, "did you mean mine"),
        ("gone", {}, "entry point 'gone' of group aimrl.rewards can't be loaded: No module named 'no_such_package'"),
        ("bare", {}, "entry point 'bare' of group aimrl.rewards can't be loaded: .*NoSuchReward"),
    ]:
        with pytest.raises(UserError, match=words):
            rewards.make(name, **options)
