"""Each reward beside the sparse one on FetchReach-v4, from the evaluations in ../fetch: python results/rewards/curves.py"""

from __future__ import annotations

from pathlib import Path

from aimrl import plots, rewards

HERE = Path(__file__).resolve().parent


def main() -> None:
    found, _ = plots.read(sorted((HERE.parent / "fetch" / "reach-fast").glob("*/seed-*")))
    groups = {g.runs[0].config["reward"]: g for g in plots.group(found)[0]}
    curve = {name: plots.curve(groups[name], "final") for name in rewards.NAMES if name in groups}
    panels = {name: [("the panel's reward", 0, curve[name]), ("sparse", 1, curve["sparse"])] for name in curve if name != "sparse"}
    plots.draw_panels(panels, HERE / "reach.png", "goal held at the end")


if __name__ == "__main__":
    main()
