"""Keeps lines of upstream libraries that a user can do nothing about off the terminal; log files keep all records."""

import builtins
import functools
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.logging import MMLogger

# How log records, warnings and printed lines begin: of mmengine, of mmdet and mmseg, and of pycocotools.
NOISE = re.compile(
    r'\n-+\nSystem environment:|Config:\n|Hooks will be executed in|Distributed training is not used|'
    r'The prefix is not set in metric class|"(FileClient|HardDiskBackend)" |Default ``avg_non_ignore`` is False|'
    r'The draw is False, it means that|faster_coco_eval is not installed|loading annotations into|D(one|ONE) \(t=|'
    r'creating index|index created|Loading and preparing|Converting ndarray to|Running per image evaluation|'
    r'Evaluate annotation type|Accumulating evaluation results'
)


@contextmanager
def quiet_terminal() -> Iterator[None]:
    """Context in which lines that begin as `NOISE` are not on the terminal; with the log level DEBUG records are."""
    show, call_handlers = builtins.print, MMLogger.callHandlers

    @functools.wraps(show)  # torch looks up functions by module and name
    def quiet_print(*values: object, **options: object) -> None:
        if not (values and NOISE.match(str(values[0]))):
            show(*values, **options)

    def call_wanted(logger: MMLogger, record: logging.LogRecord) -> None:
        is_noise = NOISE.match(record.getMessage())
        for handler in logger.handlers:
            shown = not is_noise or isinstance(handler, logging.FileHandler) or handler.level <= logging.DEBUG
            if shown and record.levelno >= handler.level:
                handler.handle(record)

    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', NOISE.pattern)
        # Neither pycocotools' printing nor the handlers that mmengine gives to every logger can be switched off.
        builtins.print, MMLogger.callHandlers = quiet_print, call_wanted
        try:
            yield
        finally:
            builtins.print, MMLogger.callHandlers = show, call_handlers
