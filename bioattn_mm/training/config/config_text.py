"""The text of a config, formatted once."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from yapf.yapflib import yapf_api

_format_code = yapf_api.FormatCode


@contextmanager
def configs_formatted_once() -> Iterator[None]:
    """Context in which yapf formats equal texts once: 0.7 s, which mmengine spends for each file and checkpoint."""
    formatted = functools.cache(lambda text, style: _format_code(text, style_config=dict(style)))
    yapf_api.FormatCode = lambda text, style_config: formatted(text, tuple(style_config.items()))
    try:
        yield
    finally:
        yapf_api.FormatCode = _format_code
