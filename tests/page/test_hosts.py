"""Which requests the page answers, without Gradio."""

import asyncio
import random
import socket
from urllib.parse import urlsplit

import pytest

from bioattn_mm.errors import InputError
from bioattn_mm.page.hosts import KnownHosts, check_host

LOCAL = ['localhost', 'LOCALHOST:7860', '127.0.0.1', '127.0.0.1:7860', '127.8.9.1:80', '[::1]:7860']
ADDRESSES = ['192.168.0.7:7860', '10.0.0.1', '[fe80::1]:7860', '0.0.0.0:7860']
OTHERS = [
    *('evil.example', 'evil.example:7860', 'localhost.evil.example', '127.0.0.1.evil.example', '127.0.0.1.', ''),
    *('evil@127.0.0.1', '127.0.0.1@evil.example', '127.0.0.1:80@evil.example', '127.0.0.1/evil', '::1'),
    *('[::1]evil', '[evil]', '127.1', '2130706433', '0x7f.0.0.1', 'loc\u0251lhost', 'localhost:', 'localhost#'),
    *('localhost,evil.example', 'localhost evil.example', '127.0.0.1\n', '[::1', '.', '[]'),
]


def test_names_of_a_page_of_this_machine_alone() -> None:
    for address in ('127.0.0.1', 'localhost', '::1', '[::1]'):
        hosts = KnownHosts(None, address)
        assert all(map(hosts.knows, LOCAL))
        assert not any(map(hosts.knows, [*ADDRESSES, *OTHERS, 'proxy.example', socket.gethostname() + 'x']))


def test_names_of_a_page_for_other_machines() -> None:
    hosts = KnownHosts(None, '0.0.0.0')
    assert all(map(hosts.knows, [*LOCAL, *ADDRESSES, f'{socket.gethostname()}:7860']))
    assert not any(map(hosts.knows, [*OTHERS, 'proxy.example']))
    assert KnownHosts(None, 'server.lan').knows('Server.LAN:80')
    for address in ('127.0.0.1', '0.0.0.0'):
        assert KnownHosts(None, address, ['Proxy.example']).knows('proxy.EXAMPLE:443')


def test_addresses_of_this_machine() -> None:
    for host in ('127.0.0.1', '0.0.0.0', 'localhost'):
        check_host(host)
    for host in ('192.0.2.1', 'a..b', '999.1.1.1'):
        with pytest.raises(InputError, match=f'--host {host} is no address of this machine: expected one'):
            check_host(host)


@pytest.mark.parametrize(
    ('origin', 'answered'),
    [
        ('http://127.0.0.1:7860', True),
        ('http://proxy.example', True),
        ('https://proxy.example:8443', True),
        ('http://127.0.0.1:3000', False),
        ('http://localhost:7860', False),
        ('http://evil.example', False),
        ('http://127.0.0.1:7860.evil.example', False),
        ('http://127.0.0.1:7860@evil.example', False),
        ('file://127.0.0.1:7860', False),
        ('http://[', False),
        ('null', False),
        ('', False),
    ],
)
def test_origins(origin: str, answered: bool) -> None:
    hosts = KnownHosts(None, '127.0.0.1', ['proxy.example'])
    assert (hosts.refusal([(b'host', b'127.0.0.1:7860'), (b'origin', origin.encode())]) is None) == answered


def test_headers_that_are_not_there_or_twice() -> None:
    hosts = KnownHosts(None, '127.0.0.1')
    own, other = (b'host', b'127.0.0.1'), (b'host', b'evil.example')
    assert hosts.refusal([own]) is None
    for headers in ([], [other], [own, other], [other, own], [own, own]):
        assert hosts.refusal(headers)
    origins = [(b'origin', b'http://127.0.0.1'), (b'origin', b'http://evil.example')]
    assert hosts.refusal([own, origins[0]]) is None and hosts.refusal([own, *origins])


def test_random_hosts() -> None:
    """Whatever is known is known to a parser of addresses as a name of this machine."""
    draw = random.Random(0)
    pieces = ['127.0.0.1', 'localhost', '[::1]', 'evil.example', '7860', '::', *':.@/%[]\\#\0 \xff?a-_']
    hosts, known = KnownHosts(None, '127.0.0.1'), 0
    for _ in range(20_000):
        host = ''.join(draw.choices(pieces, k=draw.randint(1, 5)))
        if hosts.knows(host):
            known += 1
            assert urlsplit(f'http://{host}').hostname in ('localhost', '127.0.0.1', '::1')
    assert known > 100


@pytest.mark.parametrize('kind', ['http', 'websocket', 'lifespan'])
def test_layer(kind: str) -> None:
    async def app(scope: dict, receive: object, send: object) -> None:
        await send({'type': 'answered'})

    def ask(host: bytes) -> list[dict]:
        sent = []

        async def send(message: dict) -> None:
            sent.append(message)

        scope = dict(type=kind, headers=[(b'host', host)]) if kind != 'lifespan' else dict(type=kind)
        asyncio.run(KnownHosts(app, '127.0.0.1')(scope, None, send))
        return sent

    assert ask(b'127.0.0.1') == [{'type': 'answered'}]
    refused = ask(b'evil.example')[0]
    if kind == 'http':
        assert refused['status'] == 403
    elif kind == 'websocket':
        assert refused['type'] == 'websocket.close'
    else:  # the server's own, which has no host
        assert refused == {'type': 'answered'}
