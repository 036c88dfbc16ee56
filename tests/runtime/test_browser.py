"""packaging/runtime/browser.js in headless Chromium: the label map is that of the runtime in Python."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np

from ..needs import ONNXRUNTIME_WEB, module_needs, needs

pytestmark = module_needs('onnx', 'onnxruntime', 'openvino', 'playwright')

from bioattn_mm.runtime import Model  # noqa: E402

from ..page.browser import open_browser  # noqa: E402
from ..tools.running import ROOT  # noqa: E402
from .comparison import image_of  # noqa: E402
from .small_models import WHOLE, change_pipeline, segmentor  # noqa: E402

PAGE = """<!doctype html><img src="image.png"><script type="module">
import { load, segment } from './browser.js';
const image = document.querySelector('img');
await image.decode();
const { labels, width, height } = await segment(await load('.', 'model.onnx'), image);
window.result = { labels: Array.from(labels), width, height };
</script>"""


@needs('Chromium', 'onnxruntime-web')
def test_the_browser_finds_the_same_classes(tmp_path: Path) -> None:
    segmentor(tmp_path, **WHOLE)
    # 48 x 62 become 64 x 64, without a resize.
    change_pipeline(tmp_path, inputs=[dict(minimum=32, multiple=32)])
    cv2.imwrite(str(tmp_path / 'image.png'), image_of(48, 62))
    (tmp_path / 'browser.js').write_text((ROOT / 'packaging/runtime/browser.js').read_text())
    (tmp_path / 'node_modules').symlink_to(ONNXRUNTIME_WEB)
    (tmp_path / 'index.html').write_text(PAGE)
    handler, errors = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path)), []
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server, open_browser() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.on('pageerror', errors.append)
        page.goto(f'http://127.0.0.1:{server.server_port}/')
        page.wait_for_function('window.result', timeout=30_000)
        result = page.evaluate('window.result')
        server.shutdown()
    assert not errors
    found = np.reshape(result['labels'], (result['height'], result['width']))
    model = Model(tmp_path / 'model.onnx')
    (logits,) = model.run(model.inputs_of(cv2.imread(str(tmp_path / 'image.png')))).values()
    assert logits.shape[2:] == (32, 32)
    logits = logits[:, :, :24, :31]
    near = np.diff(np.sort(logits[0], axis=0)[-2:], axis=0)[0] < 1e-4
    assert found.shape == logits.shape[2:] and len(np.unique(found)) == 4
    assert ((found == logits[0].argmax(0)) | near).all()
