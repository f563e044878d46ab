"""Grid worlds: mazes as strings, parsed and validated once; pure JAX reset and step; their exact MDPs.

A world is a text drawing. Cells stand between walls, the bottom row is y = 0 and an open outer edge wraps around:

    limit: 100                 optional: the time limit of an episode
    wind: 0.4                  optional: how often the wind wins
    +-+-+-+
    |S v G|                    . free   v free and windy   # solid
    + +-+ +                    S start  s start and windy
    |. .|.|                    G goal   g goal and windy
    +-+-+-+                    | - wall, blank = open

Several starts or goals: an episode draws one of each, uniformly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.sparse import csr_array

from aimrl.types import UserError, nearest

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = np.array([(0, 1), (0, -1), (-1, 0), (1, 0)])
CELLS = ".v#SsGg"
DEFAULT_LIMIT, DEFAULT_WIND = 100, 0.4
MAX_FILE, MAX_LIMIT = 1 << 20, 1_000_000  # bytes of a drawing (some 250,000 cells) and steps of an episode

ROOM = """
+-+-+-+-+-+-+-+-+-+-+
|. . . . . . . . . .|
+ + + + + + + + + + +
|. . . . . . . . . .|
+ + + + + + + + + + +
|. . . .|. . . . . .|
+ + + + + + + + + + +
|. . . .|. . . . . .|
+ + + + + + + + + + +
|. . . .|. . . . . .|
+ + + + + + + + + + +
|. G . .|. . . . . .|
+ + + + + + + + + + +
|. . . .|. . . . . .|
+-+-+-+-+ + + + + + +
|. . . . . . . . . .|
+ + + + + + + + + + +
|. S . . . . . . . .|
+ + + + + + + + + + +
|. . . . . . . . . .|
+-+-+-+-+-+-+-+-+-+-+
"""
# The room again, with wind from the top in the last six columns.
WINDY = "\n".join(line[:9] + line[9:].replace(".", "v") for line in ROOM.splitlines())
TORUS = """
limit: 40
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . G . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . S . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
 . . . . . . . . . .
+ + + + + + + + + + +
"""
WORLDS = {"room": ROOM, "windy": WINDY, "torus": TORUS}


@dataclass(frozen=True, eq=False)
class World:
    """A validated world. States number the cells that aren't solid, row by row from the bottom left."""

    name: str
    text: str
    width: int
    height: int
    limit: int
    xy: np.ndarray  # [S, 2] integer coordinates of each state
    starts: np.ndarray
    goals: np.ndarray
    windy: np.ndarray  # [S]
    move: np.ndarray  # [S, 4] where an action leads in calm air
    gust: np.ndarray  # [S, 4] where it leads when the wind wins
    gust_prob: np.ndarray  # [S, 4]
    walls: tuple[tuple[float, float, float, float], ...]  # segments x0, y0, x1, y1 for drawing; cell (x, y) has its centre there

    @property
    def n_states(self) -> int:
        return len(self.xy)

    def state_at(self, x: int, y: int) -> int:
        return int(np.flatnonzero((self.xy == (x, y)).all(1))[0])

    def features(self) -> np.ndarray:
        """Coordinates scaled to about ±0.5, all that learners get to see of a state."""
        size = np.array([self.width, self.height])
        return ((self.xy + 0.5) / size - 0.5).astype(np.float32)


def load(source: str | Path) -> World:
    """A built-in world by name, or one drawn in a text file."""
    name = str(source)
    if name in WORLDS:
        return parse(WORLDS[name], name)
    path = Path(name)
    if not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise UserError(f"no world file '{name}'")
        raise UserError(nearest(name, WORLDS, "world") + " (or give a text file)")
    try:
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{name}: larger than {MAX_FILE >> 20} MiB, no drawing of a world")
        return parse(path.read_text(encoding="utf-8-sig"), path.name)
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{name}: not a readable text file ({type(error).__name__})") from None


def parse(text: str, name: str = "world") -> World:
    """Read and check a drawing; any fault is one line with its row and column in the text."""

    def fail(row: int, column: int, message: str) -> NoReturn:
        raise UserError(f"{name}: row {row + 1}, column {column + 1}: {message}")

    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    top = next((i for i, line in enumerate(lines) if line.startswith("+")), None)
    options = _options(lines[:top], fail)
    if top is None:
        fail(len(lines), 0, "no maze found: its first line looks like +-+-+ or, open at the top, + + +")
    width = (len(lines[top]) - 1) // 2
    last = len(lines) - 1
    if width < 1 or len(lines[top]) % 2 == 0:
        fail(top, len(lines[top]) - 1, "the first line of the maze must alternate corners and walls, like +-+-+")
    if (last - top) % 2:
        fail(last, 0, "the maze must end with a line of walls, like +-+-+")
    height = (last - top) // 2
    if height < 1:
        fail(top, 0, "the maze has no row of cells")
    rows = [line.ljust(2 * width + 1) for line in lines[top:]]
    for i, row in enumerate(rows):
        if len(row) > 2 * width + 1:
            fail(top + i, 2 * width + 1, f"the line is longer than the maze's {2 * width + 1} columns")
        for j, char in enumerate(row):
            _check_char(i, j, char, lambda message, i=i, j=j: fail(top + i, j, message))
    for i in range(1, 2 * height, 2):
        if (rows[i][0] == " ") != (rows[i][-1] == " "):
            side = 0 if rows[i][0] == " " else 2 * width
            fail(top + i, side, "an open edge wraps around, but the opposite edge is walled")
    for j in range(1, 2 * width, 2):
        if (rows[0][j] == " ") != (rows[-1][j] == " "):
            fail(top if rows[0][j] == " " else last, j, "an open edge wraps around, but the opposite edge is walled")
    cells = {(x, y): rows[2 * (height - y) - 1][2 * x + 1] for y in range(height) for x in range(width)}
    for kind, letters in (("start 'S'", "Ss"), ("goal 'G'", "Gg")):
        if not any(c in letters for c in cells.values()):
            fail(top, 0, f"the maze has no {kind}")
    return _build(name, text, rows, cells, options)


def _options(lines: list[str], fail) -> dict[str, float]:
    options: dict[str, float] = {"limit": DEFAULT_LIMIT, "wind": DEFAULT_WIND}
    for row, line in enumerate(lines):
        if not line:
            continue
        key, colon, value = line.partition(":")
        if not colon:
            fail(row, 0, "expected 'key: value' or the maze's first line, which starts with '+'")
        if key.strip() not in options:
            fail(row, 0, nearest(key.strip(), options, "key"))
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if key.strip() == "limit" and not (1 <= number <= MAX_LIMIT and number.is_integer()):
            fail(row, len(key) + 1, f"limit must be a whole number of steps, 1 to {MAX_LIMIT:,}")
        if key.strip() == "wind" and not 0 <= number <= 1:
            fail(row, len(key) + 1, "wind must be a probability between 0 and 1")
        options[key.strip()] = number
    return options


def _check_char(i: int, j: int, char: str, fail) -> None:
    if i % 2 and j % 2:
        if char not in CELLS:
            fail(f"expected a cell, one of {' '.join(CELLS)}, found {char!r}")
        return
    expected = "+" if not (i % 2 or j % 2) else " |" if i % 2 else " -"
    if char in "Gg":
        fail("the goal is inside a wall: cells stand between the walls, at every second column of every second row")
    if char in "Ss":
        fail("the start is inside a wall: cells stand between the walls, at every second column of every second row")
    if char not in expected:
        fail(f"expected {' or '.join(repr(c) for c in expected)}, found {char!r}")


def _build(name: str, text: str, rows: list[str], cells: dict[tuple[int, int], str], options: dict[str, float]) -> World:
    width, height = len(rows[0]) // 2, len(rows) // 2
    index = {cell: i for i, cell in enumerate(c for c in sorted(cells, key=lambda c: (c[1], c[0])) if cells[c] != "#")}

    def neighbour(cell: tuple[int, int], action: int) -> tuple[int, int]:
        (x, y), (dx, dy) = cell, MOVES[action]
        slot = rows[2 * (height - y) - 1 - dy][2 * x + 1 + dx]
        other = (x + dx) % width, (y + dy) % height
        return cell if slot != " " or cells[other] == "#" else (int(other[0]), int(other[1]))

    n = len(index)
    move, gust, gust_prob = np.zeros((n, 4), int), np.zeros((n, 4), int), np.zeros((n, 4))
    for cell, s in index.items():
        for action in range(4):
            there = neighbour(cell, action)
            move[s, action] = index[there]
            # The wind blows from the top: a failed up stays; a sideways step is followed by one down, each blocked on its own.
            gust[s, action] = index[{UP: cell, DOWN: there}.get(action, neighbour(there, DOWN))]
            gust_prob[s, action] = options["wind"] * (cells[cell] in "vsg" and action != DOWN)

    def where(letters: str) -> np.ndarray:
        return np.array([s for cell, s in index.items() if cells[cell] in letters])

    windy = np.zeros(n, bool)
    windy[where("vsg").astype(int)] = True
    xy = np.array(list(index))
    return World(
        name, text, width, height, int(options["limit"]), xy, where("Ss"), where("Gg"), windy, move, gust, gust_prob, _segments(rows)
    )


def _segments(rows: list[str]) -> tuple[tuple[float, float, float, float], ...]:
    height, segments = len(rows) // 2, []
    for i, row in enumerate(rows):
        for j, char in enumerate(row):
            x, y = (j - 1) / 2, height - (i + 1) / 2
            if char == "|" and i % 2:
                segments.append((x, y - 0.5, x, y + 0.5))
            elif char == "-" and j % 2:
                segments.append((x - 0.5, y, x + 0.5, y))
    return tuple(segments)


# Simulation: pure functions on a pytree of tables.


class Tables(NamedTuple):
    """What a simulator step needs of a world, as device arrays."""

    move: Int[Array, "S 4"]
    gust: Int[Array, "S 4"]
    gust_prob: Float[Array, "S 4"]
    starts: Int[Array, " n"]
    goals: Int[Array, " m"]
    limit: int


class GridState(NamedTuple):
    state: Int[Array, ""]
    goal: Int[Array, ""]  # the goal's state
    t: Int[Array, ""]


def tables(world: World) -> Tables:
    to = lambda x: jnp.asarray(x, jnp.int32)  # noqa: E731
    return Tables(to(world.move), to(world.gust), jnp.asarray(world.gust_prob, jnp.float32), to(world.starts), to(world.goals), world.limit)


def reset(tables: Tables, u: Float[Array, "2"]) -> GridState:
    """Start an episode: u, uniform in [0, 1)², chooses the start and the goal."""
    pick = lambda options, u: options[(u * options.shape[0]).astype(jnp.int32)]  # noqa: E731
    return GridState(pick(tables.starts, u[0]), pick(tables.goals, u[1]), jnp.zeros((), jnp.int32))


def step(
    tables: Tables, state: GridState, action: Int[Array, ""], u: Float[Array, ""]
) -> tuple[GridState, Bool[Array, ""], Bool[Array, ""]]:
    """One step; u, uniform in [0, 1), is the wind's. Returns the next state, `terminated` (goal reached) and `truncated` (time limit).

    The noise is an argument, not drawn here, so that a whole roll-out's can be drawn at once.
    """
    s, t = state.state, state.t + 1
    s_next = jnp.where(u < tables.gust_prob[s, action], tables.gust[s, action], tables.move[s, action])
    terminated = s_next == state.goal
    return GridState(s_next, state.goal, t), terminated, ~terminated & (t >= tables.limit)


# The exact MDP.


class ExactMDP(NamedTuple):
    """A finite goal-conditioned MDP: P(s′ | s, a), the start distribution, the goal state and the discount, in float64."""

    P: np.ndarray | list[csr_array]  # [S, A, S], or one sparse matrix an action in large worlds
    start: np.ndarray
    goal: int
    gamma: float


DENSE_STATES = 500  # above, P is sparse


def exact_mdp(world: World, gamma: float = 0.99, goal: int = 0) -> ExactMDP:
    """The world's transition matrix for its `goal`-th goal. The goal's own rows are those of the walk that ignores it."""
    n = world.n_states
    rows = np.tile(np.arange(n), 2)

    def matrix(a: int) -> csr_array:
        values = np.concatenate([1.0 - world.gust_prob[:, a], world.gust_prob[:, a]])
        matrix = csr_array((values, (rows, np.concatenate([world.move[:, a], world.gust[:, a]]))), shape=(n, n))
        matrix.eliminate_zeros()
        return matrix

    P = [matrix(a) for a in range(4)]
    start = np.zeros(n)
    start[world.starts] = 1.0 / len(world.starts)
    return ExactMDP(P if n > DENSE_STATES else np.stack([m.toarray() for m in P], axis=1), start, int(world.goals[goal]), gamma)


def hop_distance(world: World, goal: int) -> np.ndarray:
    """Fewest possible transitions from every state to state `goal` (infinite when there is none): d♦ where nothing is random."""
    distance = np.full(world.n_states, np.inf)
    distance[goal] = 0.0
    frontier = np.zeros(world.n_states, bool)
    frontier[goal] = True
    for hops in range(1, world.n_states):
        before = (frontier[world.move] & (world.gust_prob < 1)) | (frontier[world.gust] & (world.gust_prob > 0))
        frontier = before.any(1) & ~np.isfinite(distance)
        if not frontier.any():
            break
        distance[frontier] = hops
    return distance
