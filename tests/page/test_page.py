"""The page in a real browser, headless Chromium driven by Playwright, and the command that serves it."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from urllib.request import urlopen

import cv2
import numpy as np
import pytest

from bioattn_mm.page.server import TEMPORARY

from ..analysis.small_backbones import save_segmentor
from ..needs import module_needs, needs
from ..tools.running import InProcess

pytestmark = module_needs('gradio', 'playwright')
import httpx  # noqa: E402
from playwright.sync_api import Browser, Page  # noqa: E402

UPLOAD = '#upload input[type=file]'
PICTURE = ':is(img, image)'  # the prediction is an SVG with an image in it


@pytest.fixture
def page(server: str, browser: Browser) -> Iterator[Page]:
    """A new visit of the page. It must ask no other machine for anything, and have no error of JavaScript."""
    page = browser.new_page()
    page.set_default_timeout(60_000)  # until something that must happen has happened, in ms
    urls, errors = [], []
    page.on('request', lambda request: urls.append(request.url))
    page.on('pageerror', lambda error: errors.append(error))
    page.goto(server)
    page.wait_for_selector(UPLOAD, state='attached')
    yield page
    page.close()
    assert urls and not [url for url in urls if not url.startswith((server, 'data:', 'blob:'))]
    assert not errors


@pytest.fixture(scope='module')
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('images') / 'image.png'
    values = np.full((40, 60, 3), 60, np.uint8)
    values[:, 30:] = 190
    values[5:15, 10:20] = (200, 80, 20)
    cv2.imwrite(str(path), values)
    return path


def place(page: Page, picture: str) -> dict[str, float]:
    """Where a picture is on the page: x, y, width, height."""
    return page.locator(f'#{picture} {PICTURE}').bounding_box()


def click(page: Page, picture: str, row: float, column: float) -> None:
    """Click into a picture, at fractions of its height and width."""
    frame, box = page.locator(f'#{picture} :is(img, svg:has(image))'), place(page, picture)
    start = frame.bounding_box()
    left, top = (box[side] - start[side] for side in 'xy')
    # Waits until nothing covers the picture, as Gradio does while the next one is made.
    frame.click(position=dict(x=left + column * box['width'], y=top + row * box['height']))


def source(page: Page, picture: str, before: str = '') -> str:
    """Address of a picture, of which there is another one for each content; waits until it is not that of before."""
    found = page.wait_for_function(
        """([picture, before]) => {
            const element = document.querySelector(picture);
            const address = element && (element.getAttribute('src') ?? element.getAttribute('href'));
            return address !== before && address;
        }""",
        arg=[f'#{picture} {PICTURE}', before],
    )
    return found.json_value()


def pixels(page: Page, name: str) -> np.ndarray:
    address = source(page, name)
    return decoded(urlopen(address).read() if address.startswith('data:') else page.request.get(address).body())


def decoded(content: bytes) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)


@needs('Chromium')
def test_upload_click_and_controls(page: Page, image: Path) -> None:
    page.set_input_files(UPLOAD, image)
    first = source(page, 'prediction')
    page.wait_for_function("document.querySelectorAll('#about_prediction .entry').length > 0")
    assert 'input of 64 x 96 pixels' in page.inner_text('#about_prediction')
    assert page.locator(f'#attention {PICTURE}').count() == 0
    with_layer = pixels(page, 'prediction')

    page.locator('#opacity input[type=range]').click(position=dict(x=1, y=5))
    first = source(page, 'prediction', first)
    plain = pixels(page, 'prediction')
    assert plain.shape == with_layer.shape == (533, 800, 3) and (plain != with_layer).mean() > 0.5
    assert plain[:, :390].mean() + 100 < plain[:, 410:].mean()

    click(page, 'prediction', 0.5, 0.25)
    source(page, 'prediction', first)
    field = source(page, 'field')
    page.locator('#about_field').filter(has_text=re.compile('0.001 or less.*largest = 1', re.DOTALL)).wait_for()
    changed = np.argwhere((pixels(page, 'prediction') != plain).any(-1))
    np.testing.assert_allclose(changed.mean(0), (266, 200), atol=10)
    assert (pixels(page, 'attention') != plain).mean() > 0.5
    controls, *frames = [page.locator(f'#{name}').bounding_box() for name in ('upload', 'prediction', 'attention')]
    sizes = [frame[side] for side in ('width', 'height') for frame in frames]
    assert sizes == pytest.approx([1.5 * controls['width']] * 2 + [402, 400], abs=0.4)  # the first one has a border
    attention = source(page, 'attention')
    click(page, 'attention', 0.4, 0.9)
    source(page, 'field', field)
    attention = source(page, 'attention', attention)
    for dropdown, option in (('layer', 'stages.1.blocks.0.attn'), ('head', '1'), ('map', 'pooled')):
        page.click(f'#{dropdown} input')
        page.get_by_role('option', name=option, exact=True).click()
        attention = source(page, 'attention', attention)


@needs('Chromium')
def test_an_example_names_and_files(page: Page) -> None:
    """An example is shown after a click; the pointer shows what it is on, and links have what predict.py writes."""
    page.locator('#examples img').last.click()
    source(page, 'prediction')
    shares = dict(text.rsplit(' ', 2)[:2] for text in page.locator('#prediction title').all_text_contents())
    legend = page.inner_text('#about_prediction')
    assert shares and all(f'{name} ' in legend for name in shares)
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=1)
    box = place(page, 'prediction')
    point = [box['x'] + box['width'] / 2, box['y'] + box['height'] / 2]
    name = page.evaluate('([x, y]) => document.elementFromPoint(x, y).textContent', point)
    assert name.rsplit(' ', 2)[0] in shares

    page.wait_for_selector('#files a')
    files = [link.get_attribute('href') for link in page.locator('#files a').all()]
    names = ['chelsea_overlay.png', 'classes.txt', 'chelsea.png', 'predictions.json']
    assert [file.rsplit('/', 1)[1] for file in files] == names
    overlay, labels = (decoded(page.request.get(file).body()) for file in files[::2])
    assert overlay.shape == labels.shape == (300, 451, 3)
    assert page.request.get(files[3]).json()['images'][0]['file_name'] == 'chelsea.jpg'
    page.click('#upload button[aria-label="Clear"]')
    page.wait_for_selector('#files', state='hidden')


@needs('Chromium')
def test_bad_uploads_are_messages(page: Page, image: Path, tmp_path: Path) -> None:
    messages = page.locator('[data-testid=toast-body]')
    for name, content, message in (
        ('notes.txt', b'no image', 'Invalid file type: notes.txt'),
        ('large.png', bytes(2**20 + 1), 'exceed the maximum allowed size'),
        ('notes.png', b'no image', 'cannot decode the image notes.png'),
    ):
        (tmp_path / name).write_bytes(content)
        page.set_input_files(UPLOAD, tmp_path / name)
        messages.filter(has_text=message).wait_for()
    assert page.locator(f'#prediction {PICTURE}').count() == 0 and not page.is_visible('#files')
    page.click('#upload button[aria-label="Clear"]')
    page.set_input_files(UPLOAD, image)
    source(page, 'prediction')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_ended(number: int, tmp_path: Path, tool: InProcess, monkeypatch) -> None:
    """It prints the address, answers under known names, refuses a taken port, and leaves no temporary files."""
    files = (*save_segmentor(tmp_path, 'ConViT'), '--device', 'cpu')
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    if 'gradio' in sys.modules:  # it makes an empty folder in that of the first page of the process
        monkeypatch.setattr('gradio.routes.DEFAULT_TEMP_DIR', str(tmp_path / 'first'))
    printed, handler = [], signal.getsignal(signal.SIGTERM)

    def end() -> None:
        printed.extend(tool.capsys.readouterr().out.splitlines())
        assert list(tmp_path.glob(f'{TEMPORARY}*'))
        port = printed[-1].split('127.0.0.1:')[1].split('/')[0]
        assert port in tool.error(tmp_path, 'demo.py', *files, '--port', port)
        hosts = (f'127.0.0.1:{port}', 'proxy.example', 'evil.example')
        answers = [httpx.get(f'http://127.0.0.1:{port}/config', headers={'Host': host}) for host in hosts]
        assert [answer.status_code for answer in answers] == [200, 200, 400]
        os.kill(os.getpid(), number)

    monkeypatch.setattr(signal, 'pause', end)
    try:
        with pytest.raises(SystemExit) if number == signal.SIGTERM else nullcontext() as exit_:
            tool(tmp_path, 'demo.py', *files, '--allow-host', 'proxy.example')
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert exit_ is None or exit_.value.code == 128 + signal.SIGTERM
    assert printed[-1].startswith('convit, convit.pth: http://127.0.0.1:')
    assert not list(tmp_path.glob(f'{TEMPORARY}*'))


def test_what_is_refused_before_the_model_is_loaded(tmp_path: Path, tool: InProcess, monkeypatch) -> None:
    call = ('demo.py', 'config.py', 'checkpoint.pth')
    line = tool.refused(tmp_path, *call, '--port', '70000')
    assert line == 'error: --port must be at most 65535, got 70000'
    monkeypatch.setitem(sys.modules, 'gradio', None)
    assert tool.refused(tmp_path, *call).endswith("gradio, which is not installed: pip install 'bioattn_mm[demo]'")
