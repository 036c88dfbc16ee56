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

from ..tools.running import InProcess, make_user_folder


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
    assert read['message_hub']['log_scalars']['train/loss'].mean() == 1.5
    assert read['args'].lr == 0.1


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple:
        function, *arguments = self.call
        return function, tuple(arguments)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A checkpoint that would create the file `created` beside it."""
    path = tmp_path / 'prepared.pth'
    torch.save(dict(state_dict=dict(a=torch.zeros(2)), meta=Call(Path.touch, tmp_path / 'created')), path)
    return path


def test_a_program_is_refused_by_its_name(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'prepared.pth holds more than weights: pathlib\.\S*, .* --trust-check'):
        read_state_dict(str(prepared))
    assert not prepared.with_name('created').exists()
    # `getattr` is for statistics alone.
    torch.save(dict(state_dict=dict(a=torch.zeros(2)), meta=Call(getattr, HistoryBuffer, '__init__')), prepared)
    with pytest.raises(InputError, match='holds more than weights: getattr'):
        read_state_dict(str(prepared))
    # A folder is read as safely.
    folder = tmp_path / 'folder'
    folder.mkdir()
    (folder / METADATA).write_bytes(pickle.dumps(Call(torch.load, str(prepared))))
    write_rest(folder, {})
    with pytest.raises(InputError, match=r'holds more than weights: torch\.serialization\.load, '):
        read_state_dict(str(folder))


def test_trust(prepared: Path) -> None:
    before = dict(os.environ)
    with code_refused():
        trust_checkpoints()
        assert list(read_state_dict(str(prepared))) == ['a']
    assert prepared.with_name('created').exists()
    assert dict(os.environ) == before


UPERNET = 'configs/transnext/upernet_micro_ade20k.py'


# Read by mmengine's Runner, as a state to go on from, by `init_cfg`, by a tool itself, and into a model of timm.
@pytest.mark.parametrize('command', [
    f'test.py {UPERNET} prepared.pth --mini',
    f'train.py {UPERNET} --mini --resume prepared.pth',
    f'train.py {UPERNET} --dry-run --cfg-options model.backbone.init_cfg.checkpoint=prepared.pth',
    'convert_checkpoint.py prepared.pth converted.pth',
    'analysis/fit_position_bias.py vit_relpos_small_patch16_224 prepared.pth --out out',
])  # fmt: skip
def test_tools_refuse_it(command: str, prepared: Path, workplace: Path, tool: InProcess) -> None:
    folder = prepared.parent
    make_user_folder(folder, workplace)
    (folder / 'data/mini').symlink_to(workplace / 'data/mini')
    line = tool.refused(folder, *command.split())
    assert line.startswith('error: prepared.pth holds more than weights: pathlib.')
