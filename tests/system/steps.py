"""The steps of putting a new segment in another one's place, and how a process gets a signal before one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from shmtrie import creation, resize, succession
from shmtrie.layout import RETIRED, SUCCEEDING

# In this order; of those that happen several times the first one counts.
STEPS = (
    "leftover",  # the right is taken
    "file",  # nothing is there yet
    "memory",  # the file exists, and is empty
    "mark",  # complete but for its content (resize), or full (rebuild); writers are told next
    "rest",
    "copy",
    "succession lock",  # the new one is full
    "new marked",
    "ready",
    "rename",
    "old retired",
    "new in force",
)


def stop_at(step: str, number: int) -> None:
    """Make this process get a signal right before a step, once; "none" does nothing."""
    if step == "none":
        return

    def strike(module: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
        original = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            if when(*arguments):
                setattr(module, name, original)
                os.kill(os.getpid(), number)
            return original(*arguments, **named)

        setattr(module, name, call)

    if step == "leftover":
        strike(succession, "_remove_leftover")
    elif step == "file":
        strike(succession, "begin_file")
    elif step == "memory":
        strike(creation, "check_room")
    elif step == "mark":
        strike(succession.Succession, "mark")
    elif step == "rest":
        strike(resize, "_come_to_rest")
    elif step == "copy":
        strike(resize, "_copy")
    elif step == "succession lock":
        strike(succession, "lock_or_give_up")
    elif step == "new marked":
        strike(succession.Succession, "_mark_new", lambda _, value: value == SUCCEEDING)
    elif step == "ready":
        strike(succession, "make_ready")
    elif step == "rename":
        strike(os, "rename")
    elif step == "old retired":
        strike(succession.Succession, "_mark_old", lambda _, value: value == RETIRED)
    elif step == "new in force":
        strike(succession.Succession, "_mark_new", lambda _, value: value == 0)
    else:
        raise ValueError(step)
