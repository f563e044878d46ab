"""What AIM's loss estimates, and what the exact distance is, in a room with wind: hops against expected steps.

python examples/windy.py
"""

from aimrl import grid, theory
from aimrl.envs import grid as worlds

exact = worlds.exact_mdp(worlds.load("windy"))
mdp = theory.GoalMDP(*exact)
numbers = theory.analyse(mdp, theory.uniform_policy(mdp))
print({name: round(float(numbers[name]), 1) for name in ("w1_hop", "w1_eq4", "w1_dual")})

# Train with the bound of the exact dual; bound="two-sided" is the paper's.
result = grid.run("windy", "aim", seeds=8, iterations=50, out="runs/example-windy", progress=False, bound="expected")
print(result["success_rate"])
