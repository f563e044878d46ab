"""TD3 of Stable-Baselines3 learns FetchReach with AIM's reward; `--her` trains the same agent with plain hindsight replay.

    python examples/sb3_fetch_reach.py --steps 1600

Needs Stable-Baselines3: `pip install -e '.[sb3]'` in the checkout. Prints the success rate of the deterministic policy.
"""

import argparse

import gymnasium as gym
import gymnasium_robotics
import numpy as np
from stable_baselines3 import TD3, HerReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from aimrl.sb3 import AIMReplayBuffer, LogReward

REWARD_OPTIONS = {"standardise": True}  # goals differ by centimetres around a metre


def success_rate(model: TD3, norm: VecNormalize, env: gym.Env, episodes: int = 20) -> float:
    """Share of episodes that end at the goal."""
    hits = []
    for seed in range(episodes):
        (obs, info), over = env.reset(seed=10_000 + seed), False
        while not over:
            obs, _, terminated, truncated, info = env.step(model.predict(norm.normalize_obs(obs), deterministic=True)[0])
            over = terminated or truncated
        hits.append(info["is_success"])
    return float(np.mean(hits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reward", default="aim", help="any reward of aimrl: aim, aim+r, sparse, dense, rnd, …")
    parser.add_argument("--her", action="store_true", help="plain HerReplayBuffer instead")
    args = parser.parse_args()

    gym.register_envs(gymnasium_robotics)
    env = VecNormalize(DummyVecEnv([lambda: gym.make("FetchReach-v4")]), norm_reward=False)
    ours = {"reward": args.reward, "reward_options": REWARD_OPTIONS if args.reward.startswith("aim") else {}}
    model = TD3(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer if args.her else AIMReplayBuffer,
        replay_buffer_kwargs={} if args.her else ours,
        learning_starts=1_000,
        batch_size=256,
        buffer_size=50_000,
        gamma=0.9,
        tau=0.05,
        action_noise=NormalActionNoise(np.zeros(4), np.full(4, 0.5)),
        policy_kwargs={"net_arch": [64, 64]},
        seed=args.seed,
        verbose=1,
    )
    model.learn(args.steps, callback=None if args.her else LogReward(), log_interval=10)
    name = "plain HER" if args.her else args.reward
    print(f"{name}: success {success_rate(model, env, gym.make('FetchReach-v4')):.0%} after {args.steps} steps")


if __name__ == "__main__":
    main()
