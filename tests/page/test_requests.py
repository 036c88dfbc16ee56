"""Requests that no browser sends from the page: of other sites, for other files, with images that are none."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..needs import module_needs

pytestmark = module_needs('gradio')
import httpx  # noqa: E402


def encoded(kind: str, size: tuple[int, int] = (50, 40)) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def client(server: str) -> httpx.Client:
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


def upload(client: httpx.Client, name: str, content: bytes, **headers: str) -> httpx.Response:
    return client.post('gradio_api/upload', files={'files': (name, content, 'image/png')}, headers=headers)


@pytest.mark.parametrize('origin', [{}, {'Origin': 'http://evil.example'}], ids=str)
def test_a_name_that_was_resolved_to_this_machine_is_refused(origin: dict[str, str], client: httpx.Client) -> None:
    headers = {'Host': 'evil.example', **origin}
    answers = [
        *(client.get(path, headers=headers) for path in ('', 'config', 'gradio_api/info', 'theme.css')),
        client.post('gradio_api/queue/join', json={}, headers=headers),
        upload(client, 'image.png', encoded('png'), **headers),
    ]
    assert {(answer.status_code, answer.text) for answer in answers} == {(400, 'Invalid host header')}


def test_other_sites_read_nothing(client: httpx.Client) -> None:
    for origin in ('http://evil.example', 'null'):
        headers = {'Origin': origin, 'Access-Control-Request-Method': 'POST'}
        for answer in (client.options('gradio_api/upload', headers=headers), client.get('config', headers=headers)):
            assert 'access-control-allow-origin' not in answer.headers


def test_the_page_itself_is_answered(client: httpx.Client, server: str) -> None:
    origin = server.rstrip('/')
    port = origin.rsplit(':', 1)[1]
    config = client.get('config', headers={'Origin': origin})
    assert client.get('').status_code == config.status_code == 200
    assert not config.json()['run_history'] and not config.json()['analytics_enabled']
    assert client.get('config', headers={'Host': f'localhost:{port}'}).status_code == 200
    assert upload(client, 'image.png', encoded('png'), Origin=origin).status_code == 200
    assert upload(client, 'large.png', bytes(2**20 + 1)).status_code == 413


def test_files_of_the_machine_are_not_served(client: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / 'secret.png'
    secret.write_bytes(b'a secret')
    draw = random.Random(0)
    steps = ['..', '%2e%2e', '....', '%252e', '.', '', '~', '%00', '\\', 'C:', '%5c..', 'tmp']
    paths = [str(secret), f'/{secret}', f'file://{secret}', f'//{secret}', f'..{secret}', f'%2f{secret}']
    paths += ['/'.join(draw.choices(steps, k=draw.randint(1, 8))) + str(secret) for _ in range(60)]
    for path in paths:
        for route in ('gradio_api/file=', 'file=', 'gradio_api/file/', 'static/', 'assets/', 'svelte/'):
            answer = client.get(f'{route}{path}')
            assert b'a secret' not in answer.content and answer.status_code < 500, (route, path)


def ask(client: httpx.Client, path: str) -> str:
    """What the page says of an uploaded file: its events, in which a picture or a message is."""
    config = client.get('config').json()
    target = next(part['id'] for part in config['components'] if part['props'].get('elem_id') == 'upload')
    call = next(d for d in config['dependencies'] if [target, 'upload'] in [list(t) for t in d['targets']])
    by_id = {part['id']: part['props'].get('value') for part in config['components']}
    file = dict(path=path, orig_name=Path(path).name, meta={'_type': 'gradio.FileData'})
    data = [file if place == target else by_id.get(place) for place in call['inputs']]
    session = dict(session_hash='a session')
    body = dict(data=data, fn_index=call['id'], event_data=None, trigger_id=target, **session)
    assert client.post('gradio_api/queue/join', json=body).status_code == 200
    events = ''
    with client.stream('GET', 'gradio_api/queue/data', params=session) as stream:
        for line in stream.iter_lines():
            events += line
            if 'process_completed' in line:
                break
    return events


def test_uploads_are_pictures_or_messages(client: httpx.Client) -> None:
    """Of any type, name, size and damage."""
    for name, content, is_shown in (
        *((f'image.{kind}', encoded(kind), True) for kind in ('png', 'jpeg', 'bmp', 'webp', 'tiff', 'gif')),
        *((f'{name}.png', encoded('png'), True) for name in ('i' * 200, 'ä', '<b>', 'a b', '%2e', '-rf')),
        *((f'{size}.png', encoded('png', size), None) for size in ((33, 60), (1, 1), (3, 200))),
        ('<b>.png', b'<script>alert(1)</script>', False),
        ('cut.png', encoded('png')[:20], False),
        ('noise.jpeg', encoded('jpeg')[:20] + bytes(200), False),
    ):
        answer = upload(client, name, content)
        events = ask(client, answer.json()[0])
        assert '"success":true' in events and is_shown in (None, '<svg' in events), (name, events)
        assert '<b>' not in events and '<script>' not in events
