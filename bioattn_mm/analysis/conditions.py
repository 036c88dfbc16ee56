"""Models with the images that they get: as they are, corrupted, and attacked."""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from torch import Tensor, nn

from ..checkpoints import read_state_dict, weights_for
from ..data.corruption import Corrupt
from ..errors import InputError
from ..training.config.pipelines import data_preprocessor_of
from .attacks import ATTACKS, Attack, attack_batch, check_attackable, part_of_range
from .images import ImageReader, PreparedImage
from .models import Source, TimmBackbone, build_backbone, build_randomly
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

    corruptions: list[tuple[str, int]] = field(default_factory=list)
    attack: str | None = None
    epsilon: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.corruptions or self.attack)

    @classmethod
    def read(cls, args: argparse.Namespace) -> 'Changes':
        """Read the options --corrupt, --attack and --epsilon."""
        if args.epsilon and not args.attack:
            raise InputError('--epsilon is an option of --attack: add that')
        corruptions = []
        for text in args.corrupt:
            name, _, severity = text.partition(':')
            if not severity.isdecimal():
                raise InputError(f'--corrupt takes a name and a severity, such as gaussian_noise:3, got {text}')
            Corrupt(name, int(severity))  # the error lists the corruptions
            corruptions.append((name, int(severity)))
        return cls(corruptions, args.attack, part_of_range(args.epsilon or '1/255'))


@dataclass
class Model:
    """A backbone that a tool looks into, and how it gets images.

    Attributes:
        source: Where it comes from.
        backbone: What `build_backbone` gives.
        weights: The file of its weights, or 'random weights'.
        readers: What reads a file as the model gets it, by the state of the images: `CLEAN`, first, corruptions such
            as 'gaussian_noise:3', and an attack such as 'pgd 1/255'.
    """

    source: Source
    backbone: nn.Module
    weights: str
    readers: dict[str, Callable[[Path], PreparedImage]]

    @classmethod
    def build(
        cls, source: Source, changes: Changes | None = None, size: tuple[int, int] | None = None, device: str = 'cpu'
    ) -> 'Model':
        """Build a model; `size` is that of `ImageReader`. For an attack the checkpoint must be of the whole model."""
        backbone, weights = build_backbone(source.config, source.checkpoint, device, size)
        reader = ImageReader(source.config, size, device)
        readers = {CLEAN: reader}
        changes = changes or Changes()
        for name, severity in changes.corruptions:
            corrupted = copy.deepcopy(source.config)
            insert_corruption(corrupted, name, severity)
            readers[f'{name}:{severity}'] = ImageReader(corrupted, size, device)
        if changes.attack:
            attack = ATTACKS[changes.attack](changes.epsilon)
            name = f'{changes.attack} {changes.epsilon:g}/255'
            readers[name] = Attacked(reader, _attacked_model(source, backbone, device), attack)
        return cls(source, backbone, weights, readers)


class Attacked:
    """Reads images and attacks a whole model: the loss of its own prediction, in place of a label, is raised."""

    def __init__(self, reader: ImageReader, model: nn.Module, attack: Attack) -> None:
        self.reader, self.model, self.attack = reader, model, attack

    def __call__(self, path: Path) -> PreparedImage:
        image = self.reader(path)
        batch = copy.deepcopy(image.batch)
        data = self.model.data_preprocessor(copy.deepcopy(batch), False)
        (sample,) = batch['data_samples']
        with torch.no_grad():
            if hasattr(sample, 'set_gt_label'):  # mmpretrain's samples have it
                sample.set_gt_label(self.model(data['inputs'], data['data_samples'], mode='tensor').argmax(1))
            else:
                (predicted,) = self.model.predict(data['inputs'], data['data_samples'])
                sample.gt_sem_seg = PixelData(data=predicted.pred_sem_seg.data)
        (attacked,) = attack_batch(self.attack, self.model, batch)
        return self.reader.prepared(path, attacked, image.batch['data_samples'][0])


class _TimmClassifier(nn.Module):
    """A classifier of timm as `attack_batch` calls one of mmpretrain."""

    def __init__(self, model: nn.Module, config: Config) -> None:
        super().__init__()
        self.model, self.data_preprocessor = model, MODELS.build(data_preprocessor_of(config))

    def forward(self, inputs: Tensor, data_samples: list | None = None, mode: str = 'tensor') -> Tensor:
        return self.model(inputs)


def _attacked_model(source: Source, backbone: nn.Module, device: str) -> nn.Module:
    """The whole model, in eval mode and without gradients of its parameters."""
    config = source.config
    if isinstance(backbone, TimmBackbone):
        model = _TimmClassifier(backbone.model, config)
    else:
        check_attackable(config)
        if 'type' not in config.model:
            raise InputError(f'only whole models can be attacked: {config.filename} is a backbone')
        settings = copy.deepcopy(config.model)
        settings.train_cfg = None  # what mixes images is no part of the model
        settings.data_preprocessor = data_preprocessor_of(config)
        if source.checkpoint:
            settings.init_cfg = settings.backbone.init_cfg = None
        model = build_randomly(settings, config.default_scope)
        if source.checkpoint:
            state_dict = read_state_dict(source.checkpoint)
            model.load_state_dict(weights_for(model, source.checkpoint, state_dict))
    return model.to(device).eval().requires_grad_(False)
