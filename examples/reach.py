"""Train a robot arm to reach without a reward from its environment, look at the learned potential, and write a report.

python examples/reach.py
"""

from pathlib import Path

import aimrl
from aimrl import look, report

run = aimrl.train("FetchReach-v4", reward="aim", preset="fast", steps=10_000, seed=0, out="runs/example-reach")
record = run.evaluate(episodes=100)
print(f"held {sum(record['success_final'])}, reached {sum(record['success_ever'])} of {record['episodes']} goals")
print("rank correlations of the potential:", look.draw(run, run.folder, episodes=20))
report.write([run.folder], Path("report.html"))
