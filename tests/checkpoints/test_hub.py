"""Checkpoints on the Hugging Face Hub: a small server stands for it, huggingface_hub is the real one."""

import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mmengine.runner.checkpoint import CheckpointLoader
from safetensors.torch import save_file

import bioattn_mm
from bioattn_mm.checkpoints import fetch, mmengine_reads_all, read_checkpoint, read_state_dict
from bioattn_mm.errors import InputError

from ..tools.random_weights import random_checkpoint
from ..tools.running import ROOT, InProcess, metrics_of_test

REPOSITORY, COMMIT = 'someone/transnext', 'c' * 40
ARCH = dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))
CONFIG = str(ROOT / 'tests/tools/upernet_small.py')


class Server(BaseHTTPRequestHandler):
    """Answers as the hub does: `/OWNER/NAME/resolve/REVISION/FILE`, and why something is not there."""

    folder: Path
    revisions = ('main', 'v1', 'refs/pr/1')

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def answer(self) -> bytes:
        path = self.path.replace('%2F', '/').removeprefix('/')
        repository, _, rest = path.partition('/resolve/')
        revision = next((name for name in (*self.revisions, COMMIT) if rest.startswith(f'{name}/')), None)
        file = self.folder / rest.removeprefix(f'{revision}/')
        missing = 'RepoNotFound' if repository != REPOSITORY else 'RevisionNotFound' if revision is None else None
        content, headers = b'', {'X-Error-Code': missing or 'EntryNotFound'}
        if found := not missing and file.is_file():
            content = file.read_bytes()
            headers = {'X-Repo-Commit': COMMIT, 'ETag': f'"{sha256(content).hexdigest()}"'}
        self.send_response(200 if found else 404)
        for header in {**headers, 'Content-Length': str(len(content))}.items():
            self.send_header(*header)
        self.end_headers()
        return content

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope='module')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadingHTTPServer]:
    Server.folder = tmp_path_factory.mktemp('repository')
    server = ThreadingHTTPServer(('127.0.0.1', 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def hub(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder whose files the hub has; the cache is empty."""
    address = f'http://127.0.0.1:{server.server_port}'
    # huggingface_hub reads its variables of the environment when it is imported.
    monkeypatch.setattr('huggingface_hub.constants.ENDPOINT', address)
    monkeypatch.setattr(
        'huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE',
        f'{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}',
    )
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'cache'))
    return Server.folder


@pytest.mark.parametrize('revision', ['', '@v1', '@refs%2Fpr%2F1'])
def test_a_backbone_takes_it(revision: str, hub: Path) -> None:
    backbone = bioattn_mm.TransNeXt(arch=ARCH)
    (hub / 'weights').mkdir(exist_ok=True)
    torch.save(backbone.state_dict(), hub / 'weights/small.pth')
    path = f'hf://{REPOSITORY}{revision}/weights/small.pth'
    target = bioattn_mm.TransNeXt(arch=ARCH, init_cfg=dict(type='Pretrained', checkpoint=path))
    target.init_weights()
    torch.testing.assert_close(target.state_dict(), backbone.state_dict(), rtol=0, atol=0)


def test_it_is_downloaded_once(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(dict(a=torch.ones(2), meta=Path('x')), hub / 'once.pth')
    path = f'hf://{REPOSITORY}/once.pth'
    copy = fetch(path)
    assert fetch(copy) == copy
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    assert fetch(path) == copy
    with pytest.raises(InputError, match=f'{path} holds more than weights: pathlib'):
        read_checkpoint(path)
    with pytest.raises(InputError, match='twice.pth: the hub cannot be reached, and the file is not in the cache'):
        fetch(f'hf://{REPOSITORY}/twice.pth')


def test_safetensors(hub: Path) -> None:
    weights = dict(a=torch.randn(2, 3), b=torch.arange(4))
    save_file(weights, hub / 'small.safetensors')
    torch.testing.assert_close(read_state_dict(f'hf://{REPOSITORY}/small.safetensors'), weights, rtol=0, atol=0)
    (hub / 'broken.safetensors').write_bytes(b'not safetensors')
    with pytest.raises(InputError, match='broken.safetensors: it is not what safetensors writes'):
        read_state_dict(str(hub / 'broken.safetensors'))


ABSENT = {
    'hf://someone/x.pth': 'expected hf://OWNER/NAME/FILE or hf://OWNER/NAME@REVISION/FILE, got hf://someone/x.pth',
    'hf://someone/else/x.pth': 'there is no repository someone/else, or it is private and needs `hf auth login`',
    f'hf://{REPOSITORY}/x.pth': f'cannot fetch hf://{REPOSITORY}/x.pth: {REPOSITORY} has no file x.pth',
    f'hf://{REPOSITORY}@v2/x.pth': f'{REPOSITORY} has no revision v2',
    'hf://some one/else/x.pth': 'cannot fetch hf://some one/else/x.pth: ',
}


@pytest.mark.parametrize(('path', 'message'), ABSENT.items())
def test_what_is_not_there(path: str, message: str, hub: Path) -> None:
    with pytest.raises(InputError) as error:
        fetch(path)
    assert message in str(error.value) and '\n' not in str(error.value)


def test_mmengine_reads_it_inside_of_the_context_alone(hub: Path) -> None:
    torch.save(dict(weight=torch.ones(1, 1), bias=torch.ones(1)), hub / 'linear.pth')
    save_file(dict(weight=torch.ones(1, 1), bias=torch.ones(1)), hub / 'linear.safetensors')
    schemes = list(CheckpointLoader._schemes.items())
    for path in (f'hf://{REPOSITORY}/linear.pth', str(hub / 'linear.safetensors')):
        with mmengine_reads_all(), mmengine_reads_all():
            assert CheckpointLoader.load_checkpoint(path, 'cpu', logger='silent')['weight'].item() == 1
    with mmengine_reads_all(), pytest.raises(InputError, match='ftp://a/b.pth: mmengine knows no such URLs; down'):
        read_checkpoint('ftp://a/b.pth')
    assert list(CheckpointLoader._schemes.items()) == schemes


def test_a_tool_takes_it(hub: Path, workplace: Path, tool: InProcess) -> None:
    """tools/test.py, whose Runner reads `load_from` itself, for two of the images."""
    random_checkpoint(hub / 'model.pth', CONFIG)
    save_file(torch.load(hub / 'model.pth', weights_only=True)['state_dict'], hub / 'model.safetensors')
    call = ('test.py', CONFIG, f'hf://{REPOSITORY}/model.safetensors', '--mini', '--work-dir', 'from_hub')
    tool(workplace, *call, '--cfg-options', 'test_dataloader.dataset.indices=2')
    assert 'mIoU' in metrics_of_test(workplace / 'from_hub')
    line = tool.refused(workplace, 'train.py', CONFIG, '--mini', '--resume', f'hf://{REPOSITORY}/model.pth')
    assert 'holds weights but no state of a training' in line
