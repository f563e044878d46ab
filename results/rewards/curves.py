"""Each reward beside the sparse one on FetchReach-v4 and FetchPush-v4, from the evaluations kept: python results/rewards/curves.py"""

from __future__ import annotations

from pathlib import Path

from aimrl import plots, rewards

HERE = Path(__file__).resolve().parent


def draw(folders: list[Path], name: str) -> None:
    found, _ = plots.read(sorted(run for folder in folders for run in folder.glob("*/seed-*")))
    groups = {g.runs[0].config["reward"]: g for g in plots.group(found)[0]}
    curve = {reward: plots.curve(groups[reward], "final") for reward in rewards.NAMES if reward in groups}
    panels = {reward: [("the panel's reward", 0, curve[reward]), ("sparse", 1, curve["sparse"])] for reward in curve if reward != "sparse"}
    plots.draw_panels(panels, HERE / name, "goal held at the end")


def main() -> None:
    fetch = HERE.parent / "fetch"
    draw([fetch / "reach-fast"], "reach.png")
    draw([fetch / "push-fast", HERE / "ends-objects" / "push"], "push.png")


if __name__ == "__main__":
    main()
