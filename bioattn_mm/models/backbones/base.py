"""What all backbones share: checkpoints, frozen stages, input checks."""

from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...checkpoints import load_backbone
from ...errors import InputError

MIN_INPUT_SIZE = 32


class Backbone(BaseModule):
    """Base of the backbones: (B, 3, H, W) to a tuple of (B, C_i, H_i, W_i), for any H, W >= 32.

    Args:
        frozen_stages: Stages (counted from 0) up to and including this one get no gradients and stay in eval mode;
            -1 freezes none.
        init_cfg: `dict(type='Pretrained', checkpoint=FILE)` takes a file of the authors' release, or one of this
            package, as it is. Other values are mmengine's.
    """

    def __init__(self, frozen_stages: int = -1, init_cfg: dict | list | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.frozen_stages = frozen_stages

    def stage_modules(self, stage: int) -> list[nn.Module]:
        """The modules that `frozen_stages` freezes with this stage."""
        raise NotImplementedError

    def init_weights(self) -> None:
        """Load the checkpoint of `init_cfg` and log which of its entries were not used."""
        if not (isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained'):
            super().init_weights()
            return
        path = self.init_cfg['checkpoint']
        unused = load_backbone(self, path, self.init_cfg.get('prefix', ''))
        self._is_init = True
        note = f'not used: {", ".join(unused)}' if unused else 'every entry was used'
        print_log(f'{type(self).__name__}: loaded {path}; {note}', logger='current')

    def train(self, mode: bool = True) -> 'Backbone':
        super().train(mode)
        for stage in range(self.frozen_stages + 1):
            for module in self.stage_modules(stage):
                module.eval()
                module.requires_grad_(False)
        return self

    @staticmethod
    def check_input(x: Tensor) -> None:
        """Raise an `InputError` unless `x` is (B, 3, H, W) with H, W >= 32."""
        if x.dim() != 4 or x.shape[1] != 3 or min(x.shape[2:]) < MIN_INPUT_SIZE:
            raise InputError(
                f'expected an input of (B, 3, H, W) with H and W of at least {MIN_INPUT_SIZE} pixels, '
                f'got {tuple(x.shape)}'
            )
