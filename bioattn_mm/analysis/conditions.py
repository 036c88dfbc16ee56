"""Images as they are, corrupted, and attacked, as a model gets them: for maps of each, side by side."""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from torch import Tensor, nn

from ..checkpoints import read_state_dict, weights_for
from ..datasets.corruption import Corrupt
from ..errors import InputError
from ..run_config.pipelines import data_preprocessor_of
from ..run_config.runner import without_initial_values
from .attacks import Attack, attack_batch, check_attackable, fgsm, part_of_range, pgd
from .images import ImageReader, PreparedImage
from .models import SEED, TimmBackbone
from .robustness import insert_corruption

CLEAN = 'clean'


@dataclass
class Changes:
    """What is done to images.

    Attributes:
        corruptions: Names and severities.
        attack: 'fgsm', 'pgd' or None.
        epsilon: Largest change of a pixel value by the attack, of 255.
    """

    corruptions: list[tuple[str, int]]
    attack: str | None = None
    epsilon: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.corruptions or self.attack)

    @classmethod
    def read(cls, args: argparse.Namespace) -> 'Changes':
        """Read the options of `ToolParser.add_changes`.

        Raises:
            InputError: There is no such corruption or severity, or an epsilon without an attack.
        """
        if args.epsilon and not args.attack:
            raise InputError('--epsilon is an option of --attack: add that')
        epsilon = 255 * part_of_range('--epsilon', args.epsilon or '1/255')
        corruptions = []
        for text in args.corrupt:
            name, _, severity = text.partition(':')
            if not severity.isdecimal():
                raise InputError(f'--corrupt takes a name and a severity, such as gaussian_noise:3, got {text}')
            Corrupt(name, int(severity))  # says what there is
            corruptions.append((name, int(severity)))
        return cls(corruptions, args.attack, epsilon)


@dataclass
class Condition:
    """Images in one state.

    Attributes:
        name: `CLEAN`, a corruption such as 'gaussian_noise:3', or an attack such as 'pgd 1/255'.
        read: Reads a file as the model gets it.
    """

    name: str
    read: Callable[[Path], PreparedImage]


def conditions_of(
    config: Config,
    checkpoint: str | None,
    backbone: nn.Module,
    changes: Changes,
    size: tuple[int, int] | None,
    device: str,
) -> list[Condition]:
    """The conditions under which a model sees the images, `CLEAN` first.

    Args:
        config: Its config.
        checkpoint: Its weights, for an attack those of the whole model; None for random ones.
        backbone: Its backbone, see `build_backbone`.
        changes: What is done to the images.
        size: As in `ImageReader`.
        device: Device of the model's inputs.

    Raises:
        InputError: An attack is asked for on a model that is neither a classifier nor a segmentor, or the checkpoint
            does not fit the whole model.
    """
    reader = ImageReader(config, size, device)
    conditions = [Condition(CLEAN, reader)]
    for name, severity in changes.corruptions:
        corrupted = copy.deepcopy(config)
        insert_corruption(corrupted, name, severity)
        conditions.append(Condition(f'{name}:{severity}', ImageReader(corrupted, size, device)))
    if changes.attack:
        attack = fgsm(changes.epsilon) if changes.attack == 'fgsm' else pgd(changes.epsilon)
        model = _attacked_model(config, checkpoint, backbone, device)
        conditions.append(Condition(f'{changes.attack} {changes.epsilon:g}/255', Attacked(reader, model, attack)))
    return conditions


class Attacked:
    """Reads images and attacks them: the loss of the model's own prediction, in place of a label, is raised.

    Args:
        reader: Reads images as they are.
        model: The whole model, in eval mode.
        attack: The attack.
    """

    def __init__(self, reader: ImageReader, model: nn.Module, attack: Attack) -> None:
        self.reader, self.model, self.attack = reader, model, attack

    def __call__(self, path: Path) -> PreparedImage:
        image = self.reader(path)
        batch = copy.deepcopy(image.batch)
        with torch.no_grad():
            self._label_by_prediction(batch)
        (attacked,) = attack_batch(self.attack, self.model, batch)
        return self.reader.replace(image, attacked)

    def _label_by_prediction(self, batch: dict) -> None:
        """Give a batch of one image the label, or the label map, that the model predicts."""
        data = self.model.data_preprocessor(copy.deepcopy(batch), False)
        (sample,) = batch['data_samples']
        if hasattr(sample, 'set_gt_label'):  # mmpretrain's
            sample.set_gt_label(self.model(data['inputs'], data['data_samples'], mode='tensor').argmax(1))
        else:
            (predicted,) = self.model.predict(data['inputs'], data['data_samples'])
            sample.gt_sem_seg = PixelData(data=predicted.pred_sem_seg.data)


class _TimmClassifier(nn.Module):
    """A classifier of timm as `attack_batch` calls one of mmpretrain."""

    def __init__(self, model: nn.Module, config: Config) -> None:
        super().__init__()
        self.model = model
        self.data_preprocessor = MODELS.build(data_preprocessor_of(config))

    def forward(self, inputs: Tensor, data_samples: list | None = None, mode: str = 'tensor') -> Tensor:
        return self.model(inputs)


def _attacked_model(config: Config, checkpoint: str | None, backbone: nn.Module, device: str) -> nn.Module:
    """The whole model, in eval mode and without gradients of its parameters."""
    if isinstance(backbone, TimmBackbone):
        return _TimmClassifier(backbone.model, config).to(device).eval().requires_grad_(False)
    check_attackable(config)
    if 'type' not in config.model:
        raise InputError(f'only whole models can be attacked: {config.filename} is a backbone')
    init_default_scope(config.default_scope)
    torch.manual_seed(SEED)
    settings = copy.deepcopy(config.model)
    settings.train_cfg = None  # what mixes images is no part of the model
    settings.data_preprocessor = data_preprocessor_of(config)
    if checkpoint:
        settings.init_cfg = settings.backbone.init_cfg = None
    model = MODELS.build(settings)
    with without_initial_values():
        model.init_weights()
    if checkpoint:
        model.load_state_dict(weights_for(model, checkpoint, read_state_dict(checkpoint)))
    model.to(device)
    model.eval()
    return model.requires_grad_(False)
