"""Who may ask the page: browsers that opened it under a name of this machine, from the page itself.

A web site that a user visits can send requests to any address, also to those that only this machine reaches. Its
name gives it away: where it has its name resolved to this machine (DNS rebinding), the browser sends that name as the
host, which is no name of this machine; in requests to another host, the browser says of which site they are. Nothing
here knows Gradio.
"""

import re
import socket
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from ..errors import InputError

# A host of a `Host` header: a name, an IPv4 address, or an IPv6 address in brackets; and its port.
HOST = re.compile(r'(?:\[(?P<v6>[0-9a-f]*:[0-9a-f:.]*)\]|(?P<name>[a-z0-9._-]+))(?::\d{1,5})?', re.ASCII)
HEADERS = (b'host', b'origin')

Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable]
Send = Callable[[dict], Awaitable]
App = Callable[[Scope, Receive, Send], Awaitable]


class KnownHosts:
    """Layer around an ASGI application, which answers other requests than those of the page by 403.

    Args:
        app: The application.
        listens_at: Address that the server listens at. Where that is none of this machine alone, the machine's own
            name and any IP address are its names: an address cannot be that of a site whose name was resolved to it.
        others: More names under which it is opened, such as that of a proxy.
    """

    def __init__(self, app: App, listens_at: str, others: Collection[str] = ()) -> None:
        self.app = app
        self._is_local = is_loopback(listens_at)
        own = () if self._is_local else (socket.gethostname(), socket.getfqdn(), f'{socket.gethostname()}.local')
        self._others = {name.lower() for name in others}
        self._names = {'localhost', listens_at.lower(), *(name.lower() for name in own), *self._others}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope['headers']) if scope['type'] in ('http', 'websocket') else None
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope['type'] == 'websocket':
            await send({'type': 'websocket.close', 'code': 1008, 'reason': refusal})
        else:
            headers = [(b'content-type', b'text/plain; charset=utf-8')]
            await send({'type': 'http.response.start', 'status': 403, 'headers': headers})
            await send({'type': 'http.response.body', 'body': refusal.encode()})

    def refusal(self, headers: Collection[tuple[bytes, bytes]]) -> str | None:
        """Why a request is refused, by its headers; None if it is answered."""
        hosts, origins = ([value.decode('latin-1') for key, value in headers if key == name] for name in HEADERS)
        if len(hosts) != 1 or not self.knows(hosts[0]):
            return 'the page is not known under this name: open it by the address that it printed; see --allow-host'
        if not all(self._is_own(origin, hosts[0]) for origin in origins):
            return 'the page answers no requests from other pages'
        return None

    def knows(self, host: str) -> bool:
        """Whether a `Host` header names this machine."""
        name = name_of(host)
        if name is None or name in self._names:
            return name is not None
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._is_local

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether an `Origin` header is that of the page itself, or of a proxy that is named."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ('http', 'https') and (
            parts.netloc.lower() == host.lower() or name_of(parts.netloc) in self._others
        )


def check_host(host: str) -> None:
    """Raise an `InputError` if a server cannot listen at an address, a name, or an IPv6 address in brackets."""
    try:
        found = socket.getaddrinfo(host.strip('[]'), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    for family, *_, address in found:
        with suppress(OSError), socket.socket(family) as free:
            free.bind(address)
            return
    raise InputError(
        f'--host {host} is no address of this machine: expected one, such as 127.0.0.1, or 0.0.0.0 for all of them'
    )


def name_of(host: str) -> str | None:
    """Name or address in a `Host` header, in small letters; None where there is none."""
    match = HOST.fullmatch(host.lower())
    return match and (match['v6'] or match['name'])


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine alone."""
    try:
        return host == 'localhost' or ip_address(host.strip('[]')).is_loopback
    except ValueError:
        return False
