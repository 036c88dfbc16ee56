"""Adversarial images of classifiers and segmentors: FGSM and PGD, white-box and untargeted, in the L-infinity ball.

FGSM (Goodfellow et al., ICLR 2015) takes one step of length epsilon from the image along the sign of the loss's
gradient. PGD (Madry et al., ICLR 2018) starts at a random point of the ball around the image, takes several smaller
steps and returns to the ball after each; of several restarts the worst counts. The loss is the cross-entropy, of a
segmentor the mean over the labelled pixels.

Images are those that the data preprocessor gets, after the pipeline has resized and cropped them, with pixel values
from 0 to 255, and so are the adversarial ones; they are not rounded to integers.
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
from ..run_config.pipelines import image_kind

PIXEL_MAX = 255.0
# Label of pixels without a class, which count neither in a loss nor in a metric.
UNLABELLED = 255

# It takes images, float32 (C, H, W) each, to the loss of each and the wrong fraction of its predictions, both (N,).
Objective = Callable[[list[Tensor]], tuple[Tensor, Tensor]]


def part_of_range(option: str, text: str) -> float:
    """The value of a part of the pixel range, such as '4/255'.

    Raises:
        InputError: It is none; `option` is the option that it was given with.
    """
    numerator, _, denominator = text.partition('/')
    try:
        value = float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f'{option} must be a part of the pixel range, such as 4/255 or 0.01, got {text}')
    return value


def check_attackable(config: Config) -> None:
    """Raise an `InputError` if the model of a config is neither a classifier nor a segmentor of images in 8 bits."""
    if config.default_scope not in ('mmpretrain', 'mmseg'):
        raise InputError(
            'only classifiers (mmpretrain) and segmentors (mmseg) can be attacked: '
            f'{config.filename} is a config of {config.default_scope}'
        )
    kind = image_kind(config)
    if kind and kind.dtype != 'uint8':
        raise InputError(f'attacks are for images in 8 bits: those of {config.filename} have {kind}')


@dataclass(frozen=True)
class Attack:
    """Steps along the sign of the gradient of the loss, within a distance of the image; see `fgsm` and `pgd`.

    Attributes:
        epsilon: The largest change of a pixel value, which is from 0 to 255.
        step_size: The change of a pixel value in one step.
        steps: Number of steps.
        restarts: Number of attacks on each image, of which the one counts with the most wrong predictions, and among
            equal ones that with the highest loss.
        random_start: Start at a random point of the ball, not at the image.
    """

    epsilon: float
    step_size: float
    steps: int = 1
    restarts: int = 1
    random_start: bool = False

    def __call__(self, objective: Objective, images: list[Tensor], seeds: list[int]) -> list[Tensor]:
        """Attack images.

        Args:
            objective: The loss to be raised. Its model must be in eval mode.
            images: Images, (C, H, W) each, whose sizes may differ, with values from 0 to 255.
            seeds: A non-negative integer for each image, of its random starts.

        Returns:
            The adversarial images, float32.
        """
        images = [image.float() for image in images]
        worst = self._ascend(objective, images, seeds, 0)
        if self.restarts == 1:
            return worst
        with torch.no_grad():
            highest_loss, highest_error = objective(worst)
        for restart in range(1, self.restarts):
            found = self._ascend(objective, images, seeds, restart)
            with torch.no_grad():
                loss, error = objective(found)
            worse = (error > highest_error) | ((error == highest_error) & (loss > highest_loss))
            worst = [new if flag else old for flag, new, old in zip(worse, found, worst)]
            highest_loss = torch.where(worse, loss, highest_loss)
            highest_error = torch.where(worse, error, highest_error)
        return worst

    def _ascend(self, objective: Objective, images: list[Tensor], seeds: list[int], restart: int) -> list[Tensor]:
        found = images
        if self.random_start:
            changes = [self._random_change(image, seed, restart) for image, seed in zip(images, seeds)]
            found = [(image + change).clamp(0, PIXEL_MAX) for image, change in zip(images, changes)]
        for _ in range(self.steps):
            found = [image.detach().requires_grad_() for image in found]
            with torch.enable_grad():
                loss, _ = objective(found)
                gradients = torch.autograd.grad(loss.sum(), found)
            found = [
                self._project(attacked.detach() + self.step_size * gradient.sign(), image)
                for attacked, gradient, image in zip(found, gradients, images)
            ]
        return found

    def _random_change(self, image: Tensor, seed: int, restart: int) -> Tensor:
        """Uniform in the ball; drawn on the CPU, so that it is the same on every device."""
        generator = torch.Generator().manual_seed(zlib.crc32(f'{seed} {restart}'.encode()))
        change = torch.empty(image.shape).uniform_(-self.epsilon, self.epsilon, generator=generator)
        return change.to(image.device)

    def _project(self, attacked: Tensor, image: Tensor) -> Tensor:
        """The nearest image to `attacked` that is in the ball around `image` and whose values are from 0 to 255."""
        return (image + (attacked - image).clamp(-self.epsilon, self.epsilon)).clamp(0, PIXEL_MAX)


def fgsm(epsilon: float) -> Attack:
    """The fast gradient sign method with changes of at most `epsilon` of 255."""
    return Attack(epsilon, step_size=epsilon)


def pgd(epsilon: float, steps: int = 5, step_size: float | None = None, restarts: int = 1) -> Attack:
    """Projected gradient descent with changes of at most `epsilon` of 255.

    The default step size, 2.5 epsilon / steps, can reach the border of the ball from everywhere in it (Madry et al.).
    """
    step_size = 2.5 * epsilon / steps if step_size is None else step_size
    return Attack(epsilon, step_size, steps, restarts, random_start=True)


def attack_batch(attack: Attack, model: nn.Module, data_batch: dict) -> list[Tensor]:
    """Adversarial images of a batch of a test data loader.

    The random starts of an image depend on its file name alone: not on the batch, the model, or the order of images.

    Args:
        attack: The attack.
        model: A classifier of mmpretrain or a segmentor of mmseg, in eval mode.
        data_batch: `inputs`, images (C, H, W) as a list or stacked, and `data_samples` with their labels.

    Returns:
        The images, float32, on the model's device.

    Raises:
        InputError: The samples have neither one class each nor a label map.
    """
    sample = data_batch['data_samples'][0]
    if 'gt_sem_seg' in sample:
        predict = _segmentation_objective
    elif 'gt_label' in sample and sample.gt_label.numel() == 1:
        predict = _classification_objective
    else:
        raise InputError('only classifiers of one class an image and segmentors, with labels, can be attacked')
    device = next(model.parameters()).device
    images = [image.to(device) for image in data_batch['inputs']]
    names = [Path(sample.img_path).name for sample in data_batch['data_samples']]
    seeds = [zlib.crc32(name.encode('utf-8', 'surrogateescape')) for name in names]

    def objective(attacked: list[Tensor]) -> tuple[Tensor, Tensor]:
        data = model.data_preprocessor(dict(data_batch, inputs=attacked), training=False)
        return predict(model, **data)

    return attack(objective, images, seeds)


def _classification_objective(model: nn.Module, inputs: Tensor, data_samples: list) -> tuple[Tensor, Tensor]:
    """The objective of preprocessed images (N, C, H, W)."""
    logits = model(inputs, data_samples, mode='tensor')
    labels = torch.cat([sample.gt_label for sample in data_samples])
    return F.cross_entropy(logits, labels, reduction='none'), (logits.argmax(1) != labels).float()


def _segmentation_objective(model: nn.Module, inputs: Tensor, data_samples: list) -> tuple[Tensor, Tensor]:
    """The objective of preprocessed images (N, C, H, W), at the size of their label maps."""
    losses, errors = [], []
    # `predict`, as in the test: sliding windows, padding removed, resized to the size of the label map.
    for sample in model.predict(inputs, data_samples):
        logits, labels = sample.seg_logits.data, sample.gt_sem_seg.data[0].long()
        if logits.shape[0] == 1:  # mmseg gives the probability of the foreground there
            logits = torch.cat([torch.zeros_like(logits), logits.logit(eps=1e-6)])
        labelled = labels != UNLABELLED
        count = labelled.sum().clamp(min=1)
        losses.append(F.cross_entropy(logits[None], labels[None], ignore_index=UNLABELLED, reduction='sum') / count)
        errors.append(((logits.argmax(0) != labels) & labelled).sum() / count)
    return torch.stack(losses), torch.stack(errors)


class AttackHook(Hook):
    """Lets a Runner test on the adversarial images of its test set.

    Args:
        attack: The attack.
    """

    def __init__(self, attack: Attack) -> None:
        self.attack = attack

    def before_test(self, runner: Runner) -> None:
        runner.model.requires_grad_(False)  # gradients of the images alone

    def before_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict) -> None:
        data_batch['inputs'] = attack_batch(self.attack, runner.model, data_batch)
