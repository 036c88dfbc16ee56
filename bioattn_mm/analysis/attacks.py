"""Adversarial images of classifiers and segmentors: FGSM and PGD, white-box and untargeted, in the L-infinity ball.

FGSM (Goodfellow et al., ICLR 2015) takes one step of length epsilon from the image along the sign of the loss's
gradient. PGD (Madry et al., ICLR 2018) starts at a random point of the ball around the image, takes several smaller
steps and returns to the ball after each. The loss is the cross-entropy, of a segmentor the mean over labelled pixels.

Images are those that the data preprocessor gets, with pixel values from 0 to 255 that are not rounded to integers.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from ..errors import InputError
from ..training.config.pipelines import image_kind

PIXEL_MAX = 255.0
# Label of pixels without a class, which count neither in a loss nor in a metric.
UNLABELLED = 255


def part_of_range(text: str) -> float:
    """`--epsilon`, a part of the pixel range such as '4/255', in pixel values from 0 to 255."""
    numerator, _, denominator = text.partition('/')
    try:
        value = float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f'--epsilon must be a part of the pixel range, such as 4/255 or 0.01, got {text}')
    return PIXEL_MAX * value


def check_attackable(config: Config) -> None:
    """Raise an `InputError` if the model of a config is neither a classifier nor a segmentor of images in 8 bits."""
    if config.default_scope not in ('mmpretrain', 'mmseg'):
        found = f'{config.filename} is a config of {config.default_scope}'
        raise InputError(f'only classifiers (mmpretrain) and segmentors (mmseg) can be attacked: {found}')
    kind = image_kind(config)
    if kind and kind.dtype != 'uint8':
        raise InputError(f'attacks are for images in 8 bits: those of {config.filename} have {kind}')


@dataclass(frozen=True)
class Attack:
    """Steps along the sign of the gradient of the loss, within a distance of the image; see `fgsm` and `pgd`.

    A pixel value, from 0 to 255, changes by `epsilon` at most, and by `step_size` in a step.
    """

    epsilon: float
    step_size: float
    steps: int = 1
    random_start: bool = False

    def __call__(
        self, loss: Callable[[list[Tensor]], Tensor], images: list[Tensor], seeds: list[int]
    ) -> list[Tensor]:
        """The adversarial images, float32.

        Args:
            loss: Takes images to their summed loss, which is raised.
            images: (C, H, W) each, whose sizes may differ, with values from 0 to 255.
            seeds: A non-negative integer for each image, of its random start.
        """
        found = images = [image.float() for image in images]
        if self.random_start:
            found = [self._random_point(image, seed) for image, seed in zip(images, seeds)]
        for _ in range(self.steps):
            found = [image.detach().requires_grad_() for image in found]
            with torch.enable_grad():
                gradients = torch.autograd.grad(loss(found), found)
            for index, (image, gradient) in enumerate(zip(images, gradients)):
                change = found[index].detach() + self.step_size * gradient.sign() - image
                found[index] = (image + change.clamp(-self.epsilon, self.epsilon)).clamp(0, PIXEL_MAX)
        return found

    def _random_point(self, image: Tensor, seed: int) -> Tensor:
        """Uniform in the ball; drawn on the CPU, so that it is the same on every device."""
        change = torch.empty(image.shape)
        change.uniform_(-self.epsilon, self.epsilon, generator=torch.Generator().manual_seed(seed))
        return (image + change.to(image.device)).clamp(0, PIXEL_MAX)


def fgsm(epsilon: float) -> Attack:
    """The fast gradient sign method with changes of at most `epsilon` of 255."""
    return Attack(epsilon, step_size=epsilon)


def pgd(epsilon: float, steps: int = 5) -> Attack:
    """Projected gradient descent with changes of at most `epsilon` of 255.

    Its step size can reach the border of the ball from everywhere in it (Madry et al.).
    """
    return Attack(epsilon, 2.5 * epsilon / steps, steps, random_start=True)


ATTACKS = dict(fgsm=fgsm, pgd=pgd)


def attack_batch(attack: Attack, model: nn.Module, data_batch: dict) -> list[Tensor]:
    """Adversarial images of a batch of a test data loader, float32, on the model's device.

    The random start of an image depends on its file name alone: not on the batch, the model, or the order of images.

    Args:
        attack: The attack.
        model: A classifier of mmpretrain or a segmentor of mmseg, in eval mode.
        data_batch: `inputs`, images (C, H, W) as a list or stacked, and `data_samples` with their labels.
    """
    sample = data_batch['data_samples'][0]
    if 'gt_sem_seg' in sample:
        loss_of = _segmentation_loss
    elif 'gt_label' in sample and sample.gt_label.numel() == 1:
        loss_of = _classification_loss
    else:
        raise InputError('only classifiers of one class an image and segmentors, with labels, can be attacked')
    device = next(model.parameters()).device
    names = [Path(sample.img_path).name for sample in data_batch['data_samples']]

    def loss(images: list[Tensor]) -> Tensor:
        return loss_of(model, **model.data_preprocessor(dict(data_batch, inputs=images), training=False))

    seeds = [zlib.crc32(name.encode('utf-8', 'surrogateescape')) for name in names]
    return attack(loss, [image.to(device) for image in data_batch['inputs']], seeds)


def _classification_loss(model: nn.Module, inputs: Tensor, data_samples: list) -> Tensor:
    labels = torch.cat([sample.gt_label for sample in data_samples])
    return F.cross_entropy(model(inputs, data_samples, mode='tensor'), labels, reduction='sum')


def _segmentation_loss(model: nn.Module, inputs: Tensor, data_samples: list) -> Tensor:
    total = 0
    # `predict`, as in the test: sliding windows, padding removed, resized to the size of the label map.
    for sample in model.predict(inputs, data_samples):
        logits, labels = sample.seg_logits.data, sample.gt_sem_seg.data[0].long()
        if logits.shape[0] == 1:  # mmseg gives the probability of the foreground there
            logits = torch.cat([torch.zeros_like(logits), logits.logit(eps=1e-6)])
        loss = F.cross_entropy(logits[None], labels[None], ignore_index=UNLABELLED, reduction='sum')
        total = total + loss / (labels != UNLABELLED).sum().clamp(min=1)
    return total


class AttackHook(Hook):
    """Lets a Runner test on the adversarial images of its test set."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def before_test(self, runner: Runner) -> None:
        runner.model.requires_grad_(False)  # gradients of the images alone

    def before_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict) -> None:
        data_batch['inputs'] = attack_batch(self.attack, runner.model, data_batch)
