"""Simulators that already do what they will be asked next, so that a program's first steps are simulated while it is still being loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np


class _Call(NamedTuple):
    """One call of the simulators with what came of it."""

    name: str
    argument: np.ndarray
    answer: Any


class Ahead:
    """Simulators whose first calls are guessed: these actions, and a reset wherever an episode ends.

    A wrong guess costs time, not truth: new simulators are then led where those calls led that were really asked for.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, actions: Iterable[np.ndarray]) -> None:
        self._make, self._simulators = make, make()
        self._guesses: SimpleQueue[_Call | None] = SimpleQueue()  # None: no more
        self._guessing, self._stopping = True, threading.Event()
        self._asked: list[_Call] = []  # and answered by a guess
        self._guess("reset", np.arange(num_envs))
        self._thread = threading.Thread(target=self._run, args=(actions,), name="ahead", daemon=True)
        self._thread.start()

    def reset(self, ids: np.ndarray) -> Any:
        return self._answer("reset", ids)

    def step(self, action: np.ndarray) -> Any:
        return self._answer("step", action)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._simulators.close()

    def _run(self, actions: Iterable[np.ndarray]) -> None:
        try:
            for action in actions:
                if self._stopping.is_set():
                    break
                result, _ = self._guess("step", action)
                over = np.flatnonzero(result.terminated | result.truncated)
                if over.size:
                    self._guess("reset", over)
        except Exception:  # a guess that nobody can have meant: whoever asks for this call sees it fail on new simulators
            self._guesses.put(_Call("", np.zeros(0), None))
        self._guesses.put(None)

    def _guess(self, name: str, argument: np.ndarray) -> Any:
        answer = getattr(self._simulators, name)(argument)
        self._guesses.put(_Call(name, argument, answer))
        return answer

    def _answer(self, name: str, argument: np.ndarray) -> Any:
        if self._guessing:
            guess = self._guesses.get()
            if guess is not None and guess.name == name and np.array_equal(guess.argument, argument):
                self._asked.append(guess)
                return guess.answer
            if guess is not None:
                self._begin_again()
            self._guessing, self._asked = False, []
        return getattr(self._simulators, name)(argument)

    def _begin_again(self) -> None:
        self.close()
        self._simulators = self._make()
        for call in self._asked:
            getattr(self._simulators, call.name)(call.argument)
