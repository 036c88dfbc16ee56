"""tools/publish_model.py: weights alone, of a file or the folder of a sharded checkpoint; and wrong folders."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.distributed import checkpoint as dcp

from bioattn_mm.checkpoints import read_checkpoint, read_state_dict
from bioattn_mm.checkpoints.sharded import split

from .random_weights import random_checkpoint
from .running import ROOT, InProcess

UPERNET = str(ROOT / 'tests/tools/upernet_small.py')


@pytest.fixture(scope='module')
def place(workplace: Path) -> Path:
    """A folder with one checkpoint as a file and as a folder."""
    folder = workplace / 'sharded_folder'
    folder.mkdir()
    (folder / 'data').symlink_to(workplace / 'data')
    random_checkpoint(folder / 'file.pth', UPERNET)
    tensors, rest = split(torch.load(folder / 'file.pth', weights_only=False))
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / 'folder.pth'), no_dist=True)
    torch.save(rest, folder / 'folder.pth/rest.pth')
    return folder


@pytest.mark.parametrize('name', ['file', 'folder'])
def test_published(place: Path, name: str, tool: InProcess) -> None:
    printed = tool(place, 'publish_model.py', f'{name}.pth', f'{name}.safetensors')
    tool(place, 'publish_model.py', f'{name}.pth', f'published_{name}.pth')
    expected = torch.load(place / 'file.pth', weights_only=False)
    assert printed.startswith(f'{len(expected["state_dict"])} tensors, ')
    for published in (f'{name}.safetensors', f'published_{name}.pth'):
        weights = read_state_dict(str(place / published))
        assert weights.keys() == expected['state_dict'].keys()
        assert all(torch.equal(weights[key], value) for key, value in expected['state_dict'].items())
    with safe_open(place / f'{name}.safetensors', 'pt') as file:
        assert file.metadata() == dict(format='pt')
    checkpoint = read_checkpoint(str(place / f'published_{name}.pth'))
    assert checkpoint.keys() == {'meta', 'state_dict'}
    assert checkpoint['meta'] == dict(dataset_meta=expected['meta']['dataset_meta'])


def test_refused(place: Path, tool: InProcess) -> None:
    for call, message in {
        f'train.py {UPERNET} --mini --work-dir none --resume folder.pth': 'folder.pth holds weights but no state',
        'publish_model.py folder.pth file.pth': 'file.pth is there already: ',
        'publish_model.py folder.pth weights.onnx': 'OUT must end with .safetensors or .pth, got weights.onnx',
    }.items():
        assert tool.refused(place, *call.split()).startswith(f'error: {message}')
