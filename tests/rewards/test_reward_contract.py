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


@pytest.mark.parametrize("name", rewards.NAMES)
def test_nan_in_gives_nan_out_in_that_row_only(name):
    reward = rewards.make(name, **({"warmup": 0} if name == "rnd" else {}))
    state = reward.init(jax.random.key(0), SPEC)
    batch = random_batch(3, (5,))
    bad = batch._replace(next_achieved=batch.next_achieved.at[2].set(jnp.nan), task_reward=batch.task_reward.at[2].set(jnp.nan))
    assert jnp.isnan(total_reward(reward, state, bad)).tolist() == [False, False, True, False, False]


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
        (lambda: rewards.make("aim", target="visited", form="to-goal"), "to-goal"),
        (lambda: rewards.make("aim", target="examples", examples=[[1.0]]).init(jax.random.key(0), SPEC), "have 1 features, the goals 3"),
        (lambda: rewards.make("disco", covariance=[1.0, 2.0]).init(jax.random.key(0), SPEC), "doesn't fit goals of 3"),
        (lambda: rewards.make("disco", covariance=-1.0).init(jax.random.key(0), SPEC), "positive definite"),
    ]:
        with pytest.raises(UserError) as error:
            call()
        assert words in str(error.value)
        assert "\n" not in str(error.value)


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
    offered = [EntryPoint("mine", f"{__name__}:Mine", rewards.ENTRY_POINTS), EntryPoint("odd", "json:dumps", rewards.ENTRY_POINTS)]
    monkeypatch.setattr(rewards, "entry_points", lambda group: offered)
    assert rewards.make("mine", strength=2.0) == Mine(strength=2.0)
    for name, options, words in [("mine", {}, "strength"), ("odd", {}, "not a subclass"), ("mime", {}, "did you mean mine")]:
        with pytest.raises(UserError, match=words):
            rewards.make(name, **options)
