"""Overrides on the command line, default work dirs, and configs whose model cannot be built."""

import argparse
import pickle
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from mmengine.config import Config

from bioattn_mm.cli.command_line import SHARED, ToolParser, model_options, run_tool
from bioattn_mm.data.formats.arguments import DataArguments
from bioattn_mm.errors import InputError
from bioattn_mm.training.config.loading import default_work_dir
from bioattn_mm.training.config.model_check import check_initial_weights, state_dict_of
from bioattn_mm.training.config.options import merge_options
from bioattn_mm.training.runner import LATE

from ..tools.running import ROOT

UPERNET = ROOT / 'configs/transnext/upernet_micro_ade20k.py'


def parsed(*options: str) -> dict:
    parser = ToolParser('')
    parser.exit_on_error = False
    parser.add_config_options()
    return parser.parse_args(['--cfg-options', *options] if options else []).cfg_options


def test_arguments_that_several_tools_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('bioattn_mm.cli.command_line.trust_checkpoints', trust := Mock())
    parser = ToolParser('')
    parser.add_shared(*SHARED)
    given = (
        '--log wandb mlflow --log tensorboard --amp --cuda-graphs --timm a b --timm c --compare d e --corrupt fog:1'
    )
    args = parser.parse_args(['config.py', '--trust-checkpoint', 'x.pth', '--device', 'cpu', *given.split()])
    trust.assert_called_once_with()
    assert (args.log, args.amp, args.cuda_graphs) == (['wandb', 'mlflow', 'tensorboard'], 'float16', 16)
    assert (args.timm, args.compare, args.corrupt) == ([['a', 'b'], ['c']], [['d', 'e']], ['fog:1'])
    assert model_options(args) == dict(device='cpu', mini=False, cfg_options=None, bias_mode=None, amp='float16')
    args = parser.parse_args(['config.py', 'x.pth', '--amp', 'bfloat16', '--mini', '--reduce-zero-label', '--as-rgb'])
    assert args.amp == 'bfloat16' and args.mini and args.reduce_zero_label and args.as_rgb
    assert args.log == args.timm == args.compare == args.corrupt == [] and args.launcher == 'none'
    for wrong in ('--amp float64', '--attack x', '--launcher x', '--log x', '--cuda-graphs 0', '--local-rank x'):
        with pytest.raises((SystemExit, InputError)):
            parser.parse_args(['config.py', 'x.pth', *wrong.split()])


def test_options() -> None:
    options = parsed('a.b=(1,2)', 'c=text', 'd.0.e=None', 'f=1e-3', 'switched_off=None')
    assert options == {'a.b': (1, 2), 'c': 'text', 'd.0.e': None, 'f': 1e-3, 'switched_off': None}
    config = Config(dict(a=dict(b=3), d=[dict(e=1)], switched_off=dict(type='x')))
    merge_options(config, options)
    assert config.to_dict() == dict(a=dict(b=(1, 2)), c='text', d=[dict(e=None)], f=1e-3, switched_off=None)


WRONG_OPTIONS = {
    'max_iters': 'expected KEY=VALUE',
    '=3': 'expected KEY=VALUE',
    'a={b:3}': 'cannot be a dict',
    'a=[(1,2]': 'brackets that do not match',
    'model=x': 'model=x would replace a dict with the entries type, depth: ',
    'steps.5.type=x': 'steps.5.type=x leads nowhere in this config: list index out of range',
    'steps.first.type=x': 'steps.first.type=x leads nowhere in this config',
    'model.depth.x=x': 'model.depth.x=x leads nowhere in this config',
}


@pytest.mark.parametrize('option', WRONG_OPTIONS)
def test_options_that_are_malformed_or_lead_nowhere(option: str) -> None:
    config = Config(dict(model=dict(type='M', depth=3), steps=[dict(type='a')]))
    with pytest.raises((argparse.ArgumentError, InputError), match=WRONG_OPTIONS[option]):
        merge_options(config, parsed(option))


@pytest.mark.parametrize(('key', 'value', 'message'), [
    ('backbone.arch', 'huge', '^arch must be one of micro'),  # the package's own message
    ('backbone.depth', 3, '^the model of .*upernet_micro_ade20k.py cannot be built: .*TransNeXt'),
    ('decode_heads', 3, "unexpected keyword argument 'decode_heads', it takes backbone, decode_head, n"),
    ('type', 'Segmenter', 'Segmenter is not in the mmseg::model registry'),
])  # fmt: skip
def test_models_that_cannot_be_built(key: str, value: object, message: str) -> None:
    config = Config.fromfile(UPERNET)
    merge_options(config, {f'model.{key}': value})
    with pytest.raises(InputError, match=message) as error:
        state_dict_of(config)
    assert len(str(error.value).splitlines()) == 1


def test_weights_that_nobody_publishes(tmp_path: Path) -> None:
    config = Config.fromfile(ROOT / 'configs/vars/upernet_rvt_tiny_vars_sd_ade20k.py')
    config.model.backbone.init_cfg.checkpoint = str(tmp_path / 'weights.pth')
    with pytest.raises(InputError, match=r'no ImageNet weights at .*weights.pth \(.*nobody publishes'):
        check_initial_weights(config)
    (tmp_path / 'weights.pth').touch()
    check_initial_weights(config)
    check_initial_weights(Config.fromfile(UPERNET))  # a URL is left to the download
    config.model.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'classifier.pth'))
    with pytest.raises(InputError, match=r'no ImageNet weights at .*classifier.pth .*model.init_cfg.checkpoint=FILE'):
        check_initial_weights(config)


@pytest.mark.parametrize(('config', 'mini', 'data', 'work_dir'), [
    (str(UPERNET), False, None, 'transnext/upernet_micro_ade20k'),
    ('configs/vars/a.py', True, None, 'vars/a_mini'),
    ('/elsewhere/own.py', False, None, 'own'),
    ('x.py', False, dict(data='parts.v2'), 'x_parts.v2'),
    ('configs/gab/x.py', True, dict(data='a/parts/'), 'gab/x_parts_mini'),
    ('x.py', False, dict(train_data='a/parts.json'), 'x_a_parts'),
])  # fmt: skip
def test_work_dirs_do_not_collide(config, mini, data: dict | None, work_dir: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ('a/parts', 'parts.v2'):
        Path(name).mkdir(parents=True)
    assert default_work_dir(config, mini, *([DataArguments(**data)] if data else [])) == f'work_dirs/{work_dir}'


@pytest.mark.parametrize(('error', 'line'), [
    (InputError('expected one\ngot \udce9'), r'expected one\ngot \udce9'),
    (OSError('module.ReadError: no such file'), 'no such file'),
    (TimeoutError(), 'TimeoutError'),
    (pickle.UnpicklingError('GLOBAL os.system was refused'), 'a checkpoint holds more than weights: os.system, '),
    (pickle.UnpicklingError('pickle data was truncated'), 'cannot read a checkpoint: pickle data was truncated'),
    (UnicodeError('x'), 'a file or its name is not in the encoding of this locale: x; set PYTHONUTF8=1'),
    (ModuleNotFoundError(name='mmdeploy'), 'this needs mmdeploy, which is not installed: pip install '),
    (KeyboardInterrupt(), 'interrupted'),
])  # fmt: skip
def test_errors_are_one_line(error: BaseException, line: str, capsys: pytest.CaptureFixture) -> None:
    @run_tool
    def main() -> None:
        assert sys.stdout.errors == sys.stderr.errors == 'backslashreplace'
        raise error

    with pytest.raises(SystemExit) as exit_:
        main()
    is_interrupt = isinstance(error, KeyboardInterrupt)
    assert exit_.value.code == (130 if is_interrupt else 2)
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(line if is_interrupt else f'error: {line}')


def test_an_error_with_options_that_may_be_to_blame(monkeypatch, capsys) -> None:
    def fail(kind: type, *options: str, late: bool = False) -> str:
        """What a tool prints that ends with an exception of this type."""

        @run_tool
        def main() -> None:
            parsed(*options)
            error = TypeError('one\ntwo')
            if late:
                setattr(error, LATE, True)
            raise error

        with pytest.raises(kind):
            main()
        return capsys.readouterr().err

    option = 'model.test_cfg.mode=whole'
    line = f'error: TypeError: one; --cfg-options may be to blame, {option}: '
    assert re.fullmatch(f'{line}.*\n', fail(SystemExit, option))
    assert 'Traceback' in fail(SystemExit, option, 'log_level=DEBUG')
    fail(TypeError)
    fail(TypeError, option, late=True)
    monkeypatch.setenv('WORLD_SIZE', '2')
    fail(TypeError, option)


def test_arguments_of_the_tools_of_analysis() -> None:
    parser = ToolParser('')
    parser.add_backbone_arguments('files', max_images=3, size=(48, 64))
    args = parser.parse_args(['config.py', '--out', 'x'])
    assert (args.checkpoint, args.size, args.max_images) == (None, (48, 64), 3)
    for device in ('abacus', 'meta'):
        with pytest.raises(InputError, match=f'PyTorch has no device {device}'):
            parser.parse_args(['config.py', '--out', 'x', '--device', device])
