"""Serving the page."""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from .explorer import Explorer

# Start of the names of temporary folders.
TEMPORARY = 'bioattn_mm_page_'
# Requests wait for each other; beyond this many, a page is told that the queue is full.
MAX_WAITING = 16
LOOPBACK = ('127.0.0.1', 'localhost')


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
        other_hosts: Names under which browsers open the page beside those of this machine. Without them, a page for
            other machines is answered under any name.

    Yields:
        The page's address.

    Raises:
        OSError: The page cannot listen there.
    """
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True)
        folder = stack.enter_context(temporary)
        stack.callback(os.environ.update, dict(os.environ))
        stack.callback(os.environ.clear)  # before the update: the last callback is the first
        # Gradio reads some of the environment when it is imported.
        os.environ.update(GRADIO_TEMP_DIR=folder, GRADIO_ANALYTICS_ENABLED='False')
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        from .app import CSS, THEME, Page

        # A web site that a user visits may have its name resolved to this machine (DNS rebinding), and then sends its
        # own name as the host. Requests of other sites to this host are refused by Gradio itself.
        names = ['*'] if host not in LOOPBACK and not other_hosts else [host, *LOOPBACK, *other_hosts]
        page = Page(explorer, title)
        stack.callback(page.blocks.close, verbose=False)
        _, url, _ = page.blocks.queue(max_size=MAX_WAITING).launch(
            server_name=host,
            server_port=port,
            max_file_size=max_upload,
            allowed_paths=page.example_paths,
            app_kwargs=dict(middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names)]),
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
