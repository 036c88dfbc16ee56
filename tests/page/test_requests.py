"""Requests that no browser sends from the page: of other sites, for other files, with images that are none."""

import io
import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bioattn_mm.errors import InputError
from bioattn_mm.page.explorer import MAX_PIXELS, _read

from ..needs import module_needs

pytestmark = module_needs('gradio')
import httpx  # noqa: E402

SEED = 0
SECONDS = 60


def png(width: int, height: int) -> bytes:
    """A file of few bytes, grey."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack('>I', len(content)) + name + content + struct.pack('>I', zlib.crc32(name + content))

    compressor = zlib.compressobj(9)
    row = bytes(1 + width)
    data = b''.join([*(compressor.compress(row) for _ in range(height)), compressor.flush()])
    header = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', data) + chunk(b'IEND', b'')


def encoded(kind: str, size: tuple[int, int] = (50, 40)) -> bytes:
    pixels = np.random.default_rng(SEED).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def client(server: str) -> httpx.Client:
    with httpx.Client(base_url=server, timeout=SECONDS) as client:
        yield client


def upload(client: httpx.Client, name: str, content: bytes, **headers: str) -> httpx.Response:
    return client.post('gradio_api/upload', files={'files': (name, content, 'image/png')}, headers=headers)


@pytest.mark.parametrize(
    'headers',
    [
        {'Host': 'evil.example'},
        {'Host': 'evil.example', 'Origin': 'http://evil.example'},
        {'Origin': 'http://evil.example'},
        {'Origin': 'null'},
        {'Origin': 'http://localhost:1'},
    ],
    ids=str,
)
def test_other_sites_are_refused(headers: dict[str, str], client: httpx.Client) -> None:
    preflight = {'Access-Control-Request-Method': 'POST', **headers}
    answers = [
        *(client.get(path, headers=headers) for path in ('', 'config', 'gradio_api/info', 'theme.css')),
        client.options('gradio_api/upload', headers=preflight),
        client.post('gradio_api/queue/join', json={}, headers=headers),
        upload(client, 'image.png', encoded('png'), **headers),
    ]
    for answer in answers:
        assert answer.status_code == 403 and len(answer.text.splitlines()) == 1
        assert not [name for name in answer.headers if name.startswith('access-control')]


def test_the_page_itself_is_answered(client: httpx.Client, server: str) -> None:
    origin = server.rstrip('/')
    port = origin.rsplit(':', 1)[1]
    assert client.get('').status_code == client.get('config', headers={'Origin': origin}).status_code == 200
    assert client.get('config', headers={'Host': f'localhost:{port}'}).status_code == 200
    assert upload(client, 'image.png', encoded('png'), Origin=origin).status_code == 200


def test_files_of_the_machine_are_not_served(client: httpx.Client, tmp_path: Path) -> None:
    secret = tmp_path / 'secret.png'
    secret.write_bytes(b'a secret')
    draw = random.Random(SEED)
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
    session = 'a session'
    body = dict(data=data, fn_index=call['id'], session_hash=session, event_data=None, trigger_id=target)
    assert client.post('gradio_api/queue/join', json=body).status_code == 200
    messages = []
    with client.stream('GET', 'gradio_api/queue/data', params=dict(session_hash=session)) as stream:
        for line in stream.iter_lines():
            if line.startswith('data:'):
                messages.append(json.loads(line.removeprefix('data:')))
                if messages[-1]['msg'] == 'process_completed':
                    break
    return json.dumps(messages)


def test_random_uploads_are_pictures_or_messages(client: httpx.Client) -> None:
    """Of any type, name, size and damage: none ends in an error of the server, and the next one works."""
    draw = random.Random(SEED)
    shown = 0
    for number in range(24):
        kind = draw.choice(('png', 'jpeg', 'bmp', 'webp', 'tiff', 'gif'))
        content = bytearray(encoded(kind, draw.choice(((50, 40), (33, 60), (1, 1), (3, 200)))))
        damage = draw.choice(('none', 'none', 'cut', 'noise', 'text'))
        if damage == 'cut':
            content = content[: draw.randrange(len(content))]
        elif damage == 'noise':
            for _ in range(20):
                content[draw.randrange(len(content))] = draw.randrange(256)
        elif damage == 'text':
            content = b'<script>alert(1)</script>'
        name = draw.choice(('image', 'i' * 200, 'ä', '<b>', '..', 'a b', '%2e', '-rf'))
        name += draw.choice(('.png', f'.{kind}'))
        answer = upload(client, name, bytes(content))
        assert answer.status_code < 500, (number, name)
        if answer.status_code == 200:
            events = ask(client, answer.json()[0])
            assert '"success": true' in events and '<b>' not in events and '<script>' not in events, (number, events)
            shown += '.png' in events.split('process_completed')[1]
    assert shown >= 5


def test_a_small_file_of_many_pixels(client: httpx.Client) -> None:
    answer = upload(client, 'bomb.png', png(30_000, 30_000))
    events = ask(client, answer.json()[0])
    assert 'bomb.png has too many pixels: expected at most 160 million' in events


def test_the_number_of_pixels_is_read_before_the_image(tmp_path: Path) -> None:
    side = int(MAX_PIXELS**0.5)
    (tmp_path / 'large.png').write_bytes(png(side + 1, side + 1)[:-1000])  # it could not be decoded
    with pytest.raises(InputError, match=r'large.png has too many pixels: expected at most 160 million'):
        _read(str(tmp_path / 'large.png'))
