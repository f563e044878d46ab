"""Options from typed dataclasses: every field is one, its help is the comment beside it. tyro parses; errors become one line."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
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
        if not f.init or f.name in skip or hints[f.name] is Any:  # a field of any type can't be typed
            continue
        help_ = texts.get(f.name) or COMMON_HELP.get(f.name, "")
        short = [f.metadata["short"]] if "short" in f.metadata else None
        marks: tuple[Any, ...] = (tyro.conf.arg(help=help_, metavar=f.metadata.get("metavar") or _metavar(hints[f.name]), aliases=short),)
        if "metavar" in f.metadata:
            marks += (tyro.conf.Positional,)
        elif f.default is False and cls.__module__.startswith("aimrl.cli"):
            marks += (tyro.conf.FlagCreatePairsOff,)  # --json needs no --no-json; a preset's switch needs both
        default = f.default if defaults is None else getattr(defaults, f.name)
        found.append((f.name, typing.Annotated[(hints[f.name], *marks)], default))  # pyright: ignore[reportInvalidTypeForm]
    return found


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


def tyro_class(cls: type, made_of: Sequence[Column]) -> type:
    """A dataclass of columns, those without a default first; it carries the first line of `cls`'s docstring."""
    ordered = sorted(made_of, key=lambda column: column[2] is not MISSING)
    made = dataclasses.make_dataclass(
        cls.__name__, [(n, k) if d is MISSING else (n, k, field(default=d)) for n, k, d in ordered], frozen=True
    )
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
