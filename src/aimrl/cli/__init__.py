"""The command line: `aimrl COMMAND …`. This file finds the command and turns whatever goes wrong into one line and an exit code."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence

from aimrl.types import UserError, look_here, nearest

# docs/reference/exit-codes.md explains them.
DONE, FAILED, BAD_USAGE, BROKEN_PIPE, INTERRUPTED = 0, 1, 2, 141, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's alarms about slow compilation say nothing to a user
    shown, warnings.formatwarning = warnings.formatwarning, lambda message, *_: f"warning: {_plain(message)}\n"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the paper's symbols shows question marks instead
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, *thresholds[1:])  # imports make objects by the hundred thousand and hardly a cycle: a tenth of their time
    words = list(sys.argv[1:] if argv is None else argv)
    look_here(" ".join(words))
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except UserError as e:
        return _fail(str(e), BAD_USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as e:
        if isinstance(e, OSError) and e.errno in _ANSWERS:
            return _fail(f"{str(e.filename or 'a file')[:200]}: {e.strerror or e}", BAD_USAGE)
        if os.environ.get("AIMRL_DEBUG"):
            raise
        what = " ".join(str(e).split())[:300]
        return _fail(f"unexpected {type(e).__name__}: {what} (run with AIMRL_DEBUG=1 for the traceback)", FAILED)
    finally:
        warnings.formatwarning = shown
        gc.set_threshold(*thresholds)


_ANSWERS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)  # of the system to a name that the user gave


def _plain(message: object) -> str:
    """In one line, without the colours that Gymnasium puts into its warnings."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(message)).split())


def _fail(message: str, code: int) -> int:
    from contextlib import suppress

    with suppress(OSError):
        print("aimrl: " + " ".join(message.split()), file=sys.stderr, flush=True)
    return code


def _dispatch(argv: list[str]) -> int:
    from aimrl.cli.commands import COMMANDS

    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return DONE if argv else BAD_USAGE
    if argv[0] in ("-V", "--version"):
        from aimrl import __version__

        print(f"aimrl {__version__}")
        return DONE
    if argv[0].startswith("--print-completion"):
        from aimrl.cli import completion

        shell = argv[0].partition("=")[2] or (argv[1] if len(argv) > 1 else "")
        print(completion.script(shell))
        return DONE
    if argv[0] not in COMMANDS:
        raise UserError(nearest(argv[0], COMMANDS, "command") + " (see aimrl --help)")
    try:
        return COMMANDS[argv[0]].start(argv[1:]) or DONE
    except SystemExit as e:  # help was shown
        return int(e.code or 0)


def _overview() -> str:
    import shutil
    import textwrap

    from aimrl.cli.commands import COMMANDS

    width = max(shutil.get_terminal_size().columns, 40)
    lines = (f"  {name:<8} {command.help.summary.splitlines()[0]}" for name, command in COMMANDS.items())
    rows = "\n".join(textwrap.fill(line, width, subsequent_indent=" " * 11) for line in lines)
    return f"""usage: aimrl COMMAND [OPTIONS]

Reach goals when the only signal is "not there yet".

Commands (aimrl COMMAND --help says more):
{rows}

Options:
  --version                       what is installed
  --print-completion bash|zsh     a completion script for the shell

Examples:
  aimrl train FetchReach-v4 --reward aim        train an arm without a reward
  aimrl eval runs/FetchReach-v4-aim-s0 --video  look at what it learned
  aimrl doctor YourEnv-v0                       is your environment sound?
"""
