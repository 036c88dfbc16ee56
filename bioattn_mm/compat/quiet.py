"""Messages of mmengine for those who debug it, which it prints whatever their level if no logger is named."""

import functools
import logging
from types import ModuleType

from .after_import import AfterImport


def hide_debugging(module: ModuleType) -> None:
    """Let `mmengine.logging.print_log` print nothing of the level DEBUG, as mmdet's "Could not import OneDL"."""
    print_log = module.print_log

    @functools.wraps(print_log)
    def quiet(msg: object, logger: object = None, level: int = logging.INFO) -> None:
        if logger is not None or level > logging.DEBUG:
            print_log(msg, logger, level)

    if not hasattr(print_log, '__wrapped__'):
        module.print_log = quiet


def install() -> None:
    """Hide these messages as soon as mmengine is imported; a second call does nothing."""
    AfterImport('mmengine.logging', hide_debugging).install()
