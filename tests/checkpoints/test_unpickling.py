"""Checkpoints are read without running code that they contain."""

import argparse
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from bioattn_mm.checkpoints import read_checkpoint, read_state_dict
from bioattn_mm.checkpoints.sharded import METADATA, write_rest
from bioattn_mm.checkpoints.unpickling import code_refused, trust_checkpoints
from bioattn_mm.errors import InputError

from ..needs import needs
from ..tools.running import InProcess
from ..tools.user_folder import make_user_folder


class Program:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A checkpoint that would create the file `created` beside it."""
    path = tmp_path / 'prepared.pth'
    torch.save(dict(state_dict=dict(a=torch.zeros(2)), meta=Program(tmp_path / 'created')), path)
    return path


def test_what_mmengine_writes_is_read(tmp_path: Path) -> None:
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    checkpoint = dict(
        state_dict=OrderedDict(a=torch.arange(3)),
        meta=dict(seed=3, hook_msgs=dict(best_score=np.float64(0.5)), dataset_meta=dict(classes=('a', 'b'))),
        message_hub=dict(log_scalars={'train/loss': history}, runtime_info=dict(rates=np.arange(3, dtype=np.int64))),
        args=argparse.Namespace(lr=0.1),
    )
    torch.save(checkpoint, tmp_path / 'x.pth')
    with code_refused():  # as in a tool
        read = read_checkpoint(str(tmp_path / 'x.pth'))
        # Reading inside of the tool's context does not end it.
        read = torch.load(tmp_path / 'x.pth', weights_only=False)
    assert read['state_dict']['a'].tolist() == [0, 1, 2]
    assert read['meta']['hook_msgs']['best_score'] == 0.5
    found = read['message_hub']['log_scalars']['train/loss']
    assert found.mean() == 1.5
    assert read['args'].lr == 0.1


def test_a_program_is_refused_by_its_name(prepared: Path) -> None:
    with pytest.raises(InputError, match=r'prepared.pth holds more than weights: pathlib\.\S*, .* --trust-check'):
        read_state_dict(str(prepared))
    assert not prepared.with_name('created').exists()


def test_getattr_is_for_statistics_alone(tmp_path: Path) -> None:
    class Escape:
        def __reduce__(self) -> tuple:
            return getattr, (HistoryBuffer, '__init__')

    torch.save(dict(state_dict=dict(a=torch.zeros(2)), meta=Escape()), tmp_path / 'x.pth')
    with pytest.raises(InputError, match='holds more than weights: getattr'):
        read_state_dict(str(tmp_path / 'x.pth'))


def test_a_folder_is_read_as_safely(tmp_path: Path) -> None:
    class Escape:
        def __reduce__(self) -> tuple:
            return torch.load, (str(tmp_path / 'x.pth'),)

    (tmp_path / METADATA).write_bytes(pickle.dumps(Escape()))
    write_rest(tmp_path, {})
    with pytest.raises(InputError, match=r'holds more than weights: torch\.serialization\.load, '):
        read_state_dict(str(tmp_path))


def test_trust(prepared: Path) -> None:
    before = dict(os.environ)
    with code_refused():
        trust_checkpoints()
        assert list(read_state_dict(str(prepared))) == ['a']
    assert prepared.with_name('created').exists()
    assert dict(os.environ) == before


UPERNET = 'configs/transnext/upernet_micro_ade20k.py'
TOOLS = {
    'test': ['test.py', UPERNET, 'prepared.pth', '--mini'],
    'resume': ['train.py', UPERNET, '--mini', '--resume', 'prepared.pth'],
    'init_cfg': [
        'train.py', UPERNET, '--dry-run', '--cfg-options', 'model.backbone.init_cfg.checkpoint=prepared.pth',
    ],
    'convert': ['convert_checkpoint.py', 'prepared.pth', 'converted.pth'],
    'analysis': ['analysis/locality.py', UPERNET, 'prepared.pth', '--mini', '--out', 'out'],
    'fit': ['analysis/fit_position_bias.py', 'vit_relpos_small_patch16_224', 'prepared.pth', '--out', 'out'],
    'robustness': ['analysis/robustness.py', UPERNET, 'prepared.pth', '--mini', '--out', 'out'],
    'extrapolation': ['analysis/benchmark_extrapolation.py', UPERNET, 'prepared.pth', '--mini', '--out', 'out'],
    'export': [
        'export.py', UPERNET, 'prepared.pth', '--mini', '--out', 'out',
        '--deploy-cfg', 'configs/deploy/segmentation_torchscript.py',
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    'args', [pytest.param(args, marks=needs('mmdeploy') if name == 'export' else ()) for name, args in TOOLS.items()],
    ids=TOOLS,
)  # fmt: skip
def test_every_tool_refuses_it(args: list[str], prepared: Path, workplace: Path, tool: InProcess) -> None:
    folder = prepared.parent
    make_user_folder(folder, workplace)
    (folder / 'data/mini').symlink_to(workplace / 'data/mini')
    line = tool.refused(folder, *args)
    assert line.startswith('error: prepared.pth holds more than weights: pathlib.')
