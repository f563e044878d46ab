"""Completion scripts for bash and zsh: words are found when the script is made, so that pressing Tab starts nothing."""

from __future__ import annotations

from aimrl.types import BACKENDS, STRATEGIES, UserError, nearest

_SCRIPT = """# aimrl completion for bash and zsh; install with:  eval "$(aimrl --print-completion {shell})"
{prelude}_aimrl() {{
  local here="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$before" in
{values}
      *) case "${{COMP_WORDS[1]}}" in
{options}
      esac ;;
    esac
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$here") )
  case "$here" in -*) ;; *) COMPREPLY+=( $(compgen -f -- "$here") ) ;; esac
}}
complete -o filenames -F _aimrl aimrl
"""


def script(shell: str) -> str:
    """A script that completes commands, options and the values of closed sets."""
    from aimrl import agents
    from aimrl.cli.commands import COMMANDS
    from aimrl.cli.options import flags
    from aimrl.config import PRESETS
    from aimrl.paper import BUDGETS, ITEMS
    from aimrl.rewards import NAMES

    if shell not in ("bash", "zsh"):
        raise UserError(nearest(shell, ("bash", "zsh"), "shell") if shell else "--print-completion needs a shell: bash or zsh")
    closed = {
        "--reward": " ".join(NAMES),
        "--preset": " ".join(PRESETS),
        "--agent": " ".join(agents.NAMES),
        "--backend": " ".join(BACKENDS),
        "--her": " ".join(STRATEGIES),
        "train|doctor": "FetchReach-v4 FetchPush-v4 FetchSlide-v4 FetchPickAndPlace-v4 HandReach-v3 PointMaze_UMaze-v3",
        "grid|theory": "room windy torus",
        "paper": " ".join(ITEMS),
        "--budget": " ".join(BUDGETS),
    }
    values = "\n".join(f'      {k}) words="{v}" ;;' for k, v in closed.items())
    options = "\n".join(f'        {name}) words="{" ".join(flags(c.options()))} --help" ;;' for name, c in COMMANDS.items())
    prelude = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return _SCRIPT.format(
        shell=shell, prelude=prelude, commands=" ".join([*COMMANDS, "--help", "--version"]), values=values, options=options
    )
