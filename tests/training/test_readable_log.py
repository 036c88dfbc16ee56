"""The optimizer's groups as one table, instead of a line for every parameter."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.logging import MMLogger, print_log
from mmengine.model import BaseModule
from mmengine.optim import OptimWrapper
from torch import nn

from bioattn_mm.training.readable_log import groups_table, readable_log


def test_groups_of_the_same_values_are_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    groups = [
        dict(params=[model[0].weight], lr=0.1),
        dict(params=[model[0].bias], lr=0.1, weight_decay=0.0),
        dict(params=[model[1].weight], lr=0.1),
        # The schedule has lowered the rate.
        dict(params=[model[1].bias], lr=0.001, initial_lr=0.2),
    ]
    table = groups_table(model, OptimWrapper(torch.optim.AdamW(groups, lr=0.1, weight_decay=0.05)))
    rows = [[cell.strip() for cell in line.split('│')[1:-1]] for line in table.splitlines() if line.startswith('│')]
    assert rows == [
        ['0.2', '0.05', '1', '5', '1.bias'],
        ['0.1', '0.05', '2', f'{12 + 20}', '0.weight'],
        ['0.1', '0', '1', '4', '0.bias'],
    ]


@pytest.mark.parametrize(('log_level', 'are_logged'), [('INFO', False), ('DEBUG', True)])
def test_lines_for_every_parameter_are_for_debugging(log_level: str, are_logged: bool, tmp_path: Path) -> None:
    path, hooks = tmp_path / 'log.txt', []
    logger = MMLogger.get_instance(f'readable_log_{log_level}', log_file=str(path), log_level=log_level)
    dump_init_info, filters = BaseModule._dump_init_info, list(logger.filters)
    runner = SimpleNamespace(cfg=dict(log_level=log_level), register_hook=hooks.append)
    with pytest.raises(RuntimeError, match='training'), readable_log(runner):
        print_log('paramwise_options -- backbone.weight:lr=0.1', logger, logging.INFO)
        print_log('something else', logger, logging.INFO)
        BaseModule().init_weights()
        raise RuntimeError('training')
    assert len(hooks) == 1
    text = path.read_text()
    assert 'something else' in text
    assert ('paramwise_options' in text) == ('Initialization information' in text) == are_logged
    # What was replaced in mmengine is there again.
    assert BaseModule._dump_init_info is dump_init_info and logger.filters == filters
