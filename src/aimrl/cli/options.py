"""Options from typed dataclasses: every field is one, its help is the comment beside it. tyro parses; errors become one line."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import json
import re
import shutil
import textwrap
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aimrl.types import UserError, nearest

T = TypeVar("T")
Column = tuple[str, Any, Any]  # name, type, default

COMMON_HELP = {  # of options that many commands have
    "json": "print the result as one JSON object on the last line of standard output",
    "quiet": "say nothing but warnings and the result",
}


SHORT_Q = {"short": "-q"}  # metadata of --quiet
SHORT_FORMS = {"bound": "--bound"}  # of options in groups: --bound is --aim.bound
MAX_TEXT, MAX_NUMBERS = 1 << 20, 1 << 16  # characters and numbers in the value of an option that takes a list


def place(metavar: str) -> dict[str, str]:
    """Metadata of a field that is given by its place."""
    return {"metavar": metavar}


@dataclass(frozen=True)
class Help:
    """What `--help` shows above the options."""

    command: str
    summary: str
    examples: Sequence[str]

    @property
    def text(self) -> str:
        return self.summary + "\n\nExamples:\n" + "\n".join(f"  {e}" for e in self.examples)


def _narrow(text: str) -> str:
    """Usage and summary within the terminal's width; tyro only wraps what comes after them."""
    head, mark, rest = text.partition("Examples:")
    width = max(shutil.get_terminal_size().columns, 40)
    wrap = lambda line: textwrap.fill(line, width, subsequent_indent="    " * line.startswith("usage:"), break_on_hyphens=False)  # noqa: E731
    return "\n".join(map(wrap, head.split("\n"))) + mark + rest


def comments(cls: type) -> dict[str, str]:
    """Each field's comment: the one on its line, else the lines right above it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            lines = inspect.getsource(base).splitlines()
        except (OSError, TypeError):
            continue
        above: list[str] = []
        for line in lines:
            if match := re.match(r"    (\w+): .*?(?:  # (.*))?$", line):
                name, beside = match.groups()
                if name not in found or beside or above:
                    found[name] = re.sub(r"^noqa\S*\s*", "", beside or " ".join(above))
                above = []
            elif re.match(r"    # ", line):
                above.append(line.strip("# "))
            else:
                above = []
    return found


def columns(cls: type, defaults: Any = None, skip: Sequence[str] = ()) -> list[Column]:
    """The fields of a dataclass as columns of one that tyro can read; `defaults` is an instance of it."""
    import tyro

    texts, hints = comments(cls), typing.get_type_hints(cls)
    found: list[Column] = []
    for f in dataclasses.fields(cls):
        if not f.init or f.name in skip:
            continue
        help_ = texts.get(f.name) or COMMON_HELP.get(f.name, "")
        short = f.metadata.get("short") or SHORT_FORMS.get(f.name)
        metavar = f.metadata.get("metavar") or _metavar(hints[f.name])
        marks: tuple[Any, ...] = (tyro.conf.arg(help=help_, metavar=metavar, aliases=[short] if short else None),)
        if hints[f.name] is Any:
            marks += (_numbers_spec(),)
        if "metavar" in f.metadata:
            marks += (tyro.conf.Positional,)
        elif f.default is False and cls.__module__.startswith("aimrl.cli"):
            marks += (tyro.conf.FlagCreatePairsOff,)  # --json needs no --no-json; a preset's switch needs both
        default = f.default if defaults is None else getattr(defaults, f.name)
        found.append((f.name, typing.Annotated[(hints[f.name], *marks)], default))  # pyright: ignore[reportInvalidTypeForm]
    return found


def _numbers_spec() -> Any:
    """How tyro reads a field of any type: a number, or a list of numbers as JSON."""
    import tyro

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NUMBER|LIST",
        instance_from_str=lambda words: numbers(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [_shown(value)],
    )


def numbers(text: str) -> Any:
    """A number, or a list of numbers or of equally long such lists, from JSON."""
    import numpy as np

    if len(text) > MAX_TEXT:
        raise ValueError(f"takes at most {MAX_TEXT:,} characters, not {len(text):,}")
    try:
        value = json.loads(text)
        whole = np.asarray(value)
        kept = whole.dtype.kind in "if" and whole.size > 0 and np.isfinite(whole.astype(np.float64)).all()
    except (ValueError, OverflowError, RecursionError):  # also rows of different lengths
        kept, whole = False, np.zeros(0)
    if not kept:
        raise ValueError(f"takes a number or a list such as [0.1, 0.2] or [[1, 0], [0, 1]], not {text[:60]!r}")
    if whole.size > MAX_NUMBERS:
        raise ValueError(f"takes at most {MAX_NUMBERS:,} numbers, not {whole.size:,}")
    return value


def _shown(value: Any) -> str:
    """The default of a field of any type, for help."""
    from aimrl.runs import plain

    text = str(plain(value))
    return text if len(text) <= 60 else text[:59] + "…"


def _metavar(kind: Any) -> str | None:
    """What may be left out is shown as what may be given: INT, not {None}|INT."""
    given = [k for k in typing.get_args(kind) if k is not type(None)]
    return (
        given[0].__name__.upper()
        if len(given) == 1 and type(None) in typing.get_args(kind) and given[0] in (int, float, str, Path)
        else None
    )


def group(name: str, instance: Any) -> Column:
    """The fields of an object as options with a prefix: `--td3.tau`."""
    made = tyro_class(type(instance), columns(type(instance), instance))
    return name, made, made()


def reward_group(name: str, reward: Any, argv: Sequence[str]) -> tuple[str, Any]:
    """The prefix of a reward's options and the reward, for `group`; a short form that it doesn't have is refused."""
    own = {f.name for f in dataclasses.fields(reward)}
    for option, short in SHORT_FORMS.items():
        if option not in own and any(token.split("=")[0] == short for token in argv):
            raise UserError(f"{short} is an option of the rewards aim and aim+r; the reward '{name}' has none")
    return prefix(reward), reward


def prefix(reward: Any) -> str:
    """What a reward's options begin with: `aim` for aim and aim+r."""
    return type(reward).__name__.lower()


def changed(typed: Any, instance: Any) -> dict[str, Any]:
    """The options of a group that differ from the object they were made from."""
    from aimrl.runs import plain

    names = [f.name for f in dataclasses.fields(typed)]
    return {name: getattr(typed, name) for name in names if plain(getattr(typed, name)) != plain(getattr(instance, name))}


def tyro_class(cls: type, made_of: Sequence[Column]) -> type:
    """A dataclass of columns, those without a default first; it carries the first line of `cls`'s docstring."""
    ordered = sorted(made_of, key=lambda column: column[2] is not MISSING)
    start = lambda d: field(default_factory=lambda: d)  # noqa: E731  # not default=, which refuses arrays
    made = dataclasses.make_dataclass(cls.__name__, [(n, k) if d is MISSING else (n, k, start(d)) for n, k, d in ordered], frozen=True)
    made.__doc__ = (inspect.getdoc(cls) or "").split("\n")[0]
    return made


def flags(cls: type, prefix: str = "") -> list[str]:
    """Every option of a class made by `tyro_class`, as typed, short forms included."""
    found: list[str] = []
    for f in dataclasses.fields(cls):
        kind = typing.cast(Any, f.type)
        name = f.name.replace("_", "-")
        if dataclasses.is_dataclass(kind):
            found += flags(typing.cast(type, kind), f"{prefix}{name}.")
        elif not _is_positional(kind):
            found.append(f"--{prefix}{name}")
            found += [short for mark in kind.__metadata__ for short in getattr(mark, "aliases", None) or ()]
            if typing.get_args(kind)[0] is bool and "FlagCreatePairsOff" not in repr(kind):
                found.append(f"--{prefix}no-{name}")
    return found


def _is_positional(kind: Any) -> bool:
    return any("ositional" in repr(mark) for mark in getattr(kind, "__metadata__", ()))


def parse(made: type[T], argv: Sequence[str], help_: Help) -> T:
    """The options typed in `argv`. Help goes to standard output; whatever is wrong becomes a UserError of one line."""
    import tyro

    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return tyro.cli(made, args=list(argv), prog=f"aimrl {help_.command}", description=help_.text)
    except SystemExit as e:
        if not e.code:
            print(_narrow(out.getvalue()), end="")
            raise
        raise UserError(_reason(err.getvalue() or out.getvalue(), made, argv) + f" (see aimrl {help_.command} --help)") from None


def _reason(box: str, made: type, argv: Sequence[str]) -> str:
    """tyro's framed explanation as one line; an unknown option is answered with the nearest."""
    parts = re.split(r"^[─-]{5,}$", "\n".join(line.strip("│╭╮╰╯ ") for line in box.splitlines()), flags=re.M)
    reason = " ".join(parts[1 if len(parts) > 1 else 0].split()) or "these options don't make sense together"
    if reason.startswith("Unrecognized options"):
        known = flags(made)
        for token in argv:
            name = token.split("=")[0].replace("_", "-")
            if token.startswith("-") and name not in (*known, "-h", "--help"):
                return nearest(name, known, "option")
        return f"unexpected argument '{reason.split(': ', 1)[-1].split(', ')[0]}'"
    if choice := re.match(r"[Ii]nvalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", reason):
        value, name, valid = choice.groups()
        return nearest(value, re.findall(r"'([^']*)'", valid), f"value of {name}")
    if bad := re.match(r"Error parsing (\S+): (invalid literal for int|could not convert string to float).*'(.*)'$", reason):
        return f"{bad[1]} can't be '{bad[3]}': it takes a {'whole ' if 'int' in bad[2] else ''}number"
    if bad := re.match(r"Error parsing (\S+): no type matching \{None\}\|(INT|FLOAT) could be instantiated from \['(.*?)'\]", reason):
        return f"{bad[1]} can't be '{bad[3]}': it takes a {'whole ' if bad[2] == 'INT' else ''}number"
    if bad := re.match(r"Error parsing (\S+): Could not find valid parse for arguments: \['(.*?)'", reason):  # of several whole numbers
        return f"{bad[1]} can't be '{bad[2]}': it takes whole numbers one after another, as in {bad[1]} 256 256"
    if bad := re.match(r"Error parsing (\S+): (takes .*)$", reason):  # of `numbers`
        return f"{bad[1]} {bad[2]}"
    return reason[0].lower() + reason[1:].rstrip(".")


def typed_value(argv: Sequence[str], name: str) -> str | None:
    """The value of `--name` in `argv`, before anything is parsed."""
    value = None
    for i, token in enumerate(argv):
        if token == name and i + 1 < len(argv):
            value = argv[i + 1]
        elif token.startswith(f"{name}="):
            value = token.split("=", 1)[1]
    return value


def first_positional(argv: Sequence[str], switches: Sequence[str]) -> str | None:
    """The first word of `argv` that isn't an option's value; `switches` are the options that take none."""
    takes_value = False
    for token in argv:
        if token.startswith("-") and not _is_number(token):
            takes_value = "=" not in token and token.replace("_", "-") not in switches
        elif takes_value or _is_number(token):  # an option may take several numbers
            takes_value = False
        else:
            return token
    return None


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True
