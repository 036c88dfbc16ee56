"""Serving the page."""

import os
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from .explorer import Explorer
from .hosts import KnownHosts

if TYPE_CHECKING:
    from starlette.applications import Starlette

# Start of the names of temporary folders.
TEMPORARY = 'bioattn_mm_page_'
# Requests wait for each other; beyond this many, a page is told that the queue is full.
MAX_WAITING = 16


@contextmanager
def serving(
    explorer: Explorer, title: str, host: str, port: int | None, max_upload: int, other_hosts: Collection[str] = ()
) -> Iterator[str]:
    """Context in which the page can be opened.

    Uploaded and shown images are files of a temporary folder, which is removed at the end.

    Args:
        explorer: The model.
        title: Heading of the page.
        host: Address to listen at; 127.0.0.1 for this machine alone.
        port: Port to listen at; None for the first free one from 7860 on.
        max_upload: Largest file that may be uploaded, in bytes.
        other_hosts: Names under which browsers open the page beside those of this machine (see `KnownHosts`).

    Yields:
        The page's address.

    Raises:
        OSError: The port is taken.
    """

    @asynccontextmanager
    async def for_known_hosts(app: 'Starlette') -> AsyncIterator[None]:
        """Around all of Gradio's own layers, of which the outermost lets other sites in, before the first request."""
        app.middleware_stack = KnownHosts(app.middleware_stack, host, other_hosts)
        yield

    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        stack.enter_context(_environment(GRADIO_TEMP_DIR=folder, GRADIO_ANALYTICS_ENABLED='False'))
        # Gradio reads some of the environment when it is imported.
        from .app import CSS, THEME, Page

        page = Page(explorer, title).blocks
        stack.callback(page.close, verbose=False)
        _, url, _ = page.queue(max_size=MAX_WAITING).launch(
            server_name=host,
            server_port=port,
            max_file_size=max_upload,
            app_kwargs=dict(lifespan=for_known_hosts),
            theme=THEME,
            css=CSS,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
        )
        yield url


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Context in which variables of the environment have other values."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
