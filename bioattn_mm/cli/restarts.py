"""Processes that torchrun starts again: after a failure, and when machines leave or join.

In the folder that `launch` names in a variable, each process of this machine notes that it has started, as torchrun
counts failures alone, and that its input was refused: this module then ends the processes that are started again.
"""

import os
import sys
from pathlib import Path

STARTS = 'BIOATTN_MM_STARTS'
REFUSED = 'refused'
_FOLDER = os.environ.get(STARTS)


def is_restart() -> bool:
    """Whether this process takes the place of an earlier one of the run, to be called once in a process."""
    if not _FOLDER:
        return False
    started = Path(_FOLDER, f'started_{os.environ["LOCAL_RANK"]}')
    if started.exists():
        return True
    started.touch()
    return False


def note_refusal() -> None:
    """Let the processes of this machine end at once if they are started again."""
    if _FOLDER:
        Path(_FOLDER, REFUSED).touch()


if _FOLDER and Path(_FOLDER, REFUSED).exists():
    sys.exit(2)
