"""Does a learned reward know that s and g belong together? python results/rewards/correlation.py RUN…, any runs on FetchReach-v4.

Prints the correlation of the potential (FAIRL: the logit) with −‖s − g‖ over 2,000 pairs drawn evenly from the space of goals.
"""

from __future__ import annotations

import sys

import numpy as np

from aimrl import load

CENTRE, REACH = np.array([1.34, 0.75, 0.53]), 0.15  # of FetchReach's goals, metres

if __name__ == "__main__":
    s, g = CENTRE + np.random.default_rng(0).uniform(-REACH, REACH, (2, 2000, 3))
    for folder in sys.argv[1:]:
        run = load(folder)
        reward = run.round.reward
        f = getattr(reward, "potential", None) or getattr(reward, "logit")  # noqa: B009  rewards have one of them
        value = np.asarray(f(run.brain.reward, s.astype(np.float32), g.astype(np.float32)))
        print(f"{folder}: {np.corrcoef(value, -np.linalg.norm(s - g, axis=-1))[0, 1]:.2f}")
