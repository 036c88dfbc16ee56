"""The text of a config, formatted once."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from yapf.yapflib import yapf_api

_format_code = yapf_api.FormatCode


@contextmanager
def configs_formatted_once() -> Iterator[None]:
    """Context in which yapf formats equal texts once.

    mmengine formats the whole config for the log, for every file that it writes it to and for every checkpoint, which
    takes up to 0.7 s each time, eight times and more in a run.
    """
    yapf_api.FormatCode = lambda text, style_config: _formatted(text, tuple(style_config.items()))
    try:
        yield
    finally:
        yapf_api.FormatCode = _format_code


@functools.lru_cache(maxsize=8)
def _formatted(text: str, style: tuple[tuple[str, object], ...]) -> tuple[str, bool]:
    return _format_code(text, style_config=dict(style))
