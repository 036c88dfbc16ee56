"""The optimizer's groups as one table, instead of a line for every parameter."""

import logging

import pytest
import torch
from mmengine.logging import MMLogger, print_log
from mmengine.model import BaseModule
from mmengine.optim import OptimWrapper
from torch import nn

from bioattn_mm.training.readable_log import groups_table, readable_log


class FakeRunner:
    """As much of a Runner as the context needs."""

    def __init__(self, log_level: str) -> None:
        self.cfg = dict(log_level=log_level)
        self.hooks = []

    def register_hook(self, hook: object) -> None:
        self.hooks.append(hook)


def test_groups_of_the_same_values_are_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    groups = [
        dict(params=[model[0].weight], lr=0.1),
        dict(params=[model[0].bias], lr=0.1, weight_decay=0.0),
        dict(params=[model[1].weight], lr=0.1),
        # The schedule has lowered the rate.
        dict(params=[model[1].bias], lr=0.001, initial_lr=0.2),
    ]
    wrapper = OptimWrapper(torch.optim.AdamW(groups, lr=0.1, weight_decay=0.05))
    table = groups_table(model, wrapper)
    rows = [[cell.strip() for cell in line.split('│')[1:-1]] for line in table.splitlines() if line.startswith('│')]
    assert rows == [
        ['0.2', '0.05', '1', '5', '1.bias'],
        ['0.1', '0.05', '2', f'{12 + 20}', '0.weight'],
        ['0.1', '0', '1', '4', '0.bias'],
    ]


@pytest.mark.parametrize(('log_level', 'are_logged'), [('INFO', False), ('DEBUG', True)])
def test_lines_for_every_parameter_are_for_debugging(log_level: str, are_logged: bool, tmp_path) -> None:
    path = tmp_path / 'log.txt'
    logger = MMLogger.get_instance(f'readable_log_{log_level}', log_file=str(path), log_level=log_level)
    runner = FakeRunner(log_level)
    dump_init_info = BaseModule._dump_init_info
    with readable_log(runner):
        print_log('paramwise_options -- backbone.weight:lr=0.1', logger, logging.INFO)
        print_log('something else', logger, logging.INFO)
        BaseModule().init_weights()
    assert len(runner.hooks) == 1
    text = path.read_text()
    assert 'something else' in text
    assert ('paramwise_options' in text) == are_logged
    assert ('Initialization information' in text) == are_logged
    # What was replaced in mmengine is there again.
    assert BaseModule._dump_init_info is dump_init_info
    print_log('paramwise_options -- after', logger, logging.INFO)
    assert 'paramwise_options -- after' in path.read_text()


def test_an_exception_leaves_mmengine_as_it_was(tmp_path) -> None:
    logger = MMLogger.get_instance('readable_log_exception', log_file=str(tmp_path / 'log.txt'))
    dump_init_info, filters = BaseModule._dump_init_info, list(logger.filters)
    with pytest.raises(RuntimeError, match='training'), readable_log(FakeRunner('INFO')):
        assert BaseModule._dump_init_info is not dump_init_info and logger.filters != filters
        raise RuntimeError('training')
    assert BaseModule._dump_init_info is dump_init_info and logger.filters == filters
