"""FGSM and PGD: against their closed form on linear models, and what every adversarial image must keep to."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import PixelData
from mmpretrain.structures import DataSample
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from bioattn_mm.analysis.attacks import PIXEL_MAX, UNLABELLED, Attack, attack_batch, fgsm, pgd
from bioattn_mm.errors import InputError

SIZE = (6, 9)
MEAN, STD = (120.0, 110.0, 100.0), (60.0, 50.0, 40.0)
both = pytest.mark.parametrize('attack', [fgsm(3), pgd(3)], ids=['fgsm', 'pgd'])


class Layers(nn.Sequential):
    """A backbone with one output."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__(*layers)

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (super().forward(images),)


def build(scope: str, config: dict) -> nn.Module:
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(config).eval()
    for parameter in model.parameters():
        # Small: where a class has a probability of 1 in float32, the loss has no gradient.
        parameter.data.normal_(std=0.1 if scope == 'mmseg' else parameter[0].numel() ** -0.5)
    return model.requires_grad_(False)


def random_images(*sizes: tuple[int, int]) -> list[Tensor]:
    """Images with all values from 0 to 255, also those at which an attack is cut off."""
    return [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in sizes]


def batch_of(images: list[Tensor], labels: list[int]) -> dict:
    samples = [DataSample(metainfo=dict(img_path=f'folder/{index}.png')) for index in range(len(images))]
    return dict(inputs=images, data_samples=[sample.set_gt_label(each) for sample, each in zip(samples, labels)])


def classifier(layers: list[nn.Module], channels: int, classes: int) -> nn.Module:
    """mmpretrain's classifier with its own preprocessor, which swaps the channels."""
    head = dict(type='LinearClsHead', num_classes=classes, in_channels=channels)
    parts = dict(backbone=dict(type=Layers, layers=layers), head=head)
    preprocessor = dict(mean=MEAN, std=STD, to_rgb=True)
    return build('mmpretrain', dict(type='ImageClassifier', **parts, data_preprocessor=preprocessor))


@both
def test_the_worst_image_of_a_linear_classifier(attack: Attack) -> None:
    """Where both attacks end, wherever PGD starts."""
    model = classifier([nn.Flatten()], 3 * SIZE[0] * SIZE[1], 2)
    weight = model.head.fc.weight
    images, labels = random_images(*[SIZE] * 4), [0, 1, 1, 0]
    found = attack_batch(attack, model, batch_of(images, labels))
    for image, attacked, label in zip(images, found, labels):
        towards_the_other = (weight[1 - label] - weight[label]).view(3, *SIZE).flip(0)  # RGB to BGR
        worst = (image + attack.epsilon * towards_the_other.sign()).clamp(0, PIXEL_MAX)
        torch.testing.assert_close(attacked, worst)
    assert not torch.equal(found[0], images[0])


@pytest.mark.filterwarnings('ignore:For binary segmentation:UserWarning')
@pytest.mark.parametrize('out_channels', [1, 2])
@both
def test_the_worst_image_of_a_linear_segmentor(attack: Attack, out_channels: int) -> None:
    """A classifier of each pixel: all labelled pixels move by epsilon, and FGSM leaves the others as they are."""
    head = dict(type='FCNHead', num_convs=0, concat_input=False, in_channels=3, channels=3, in_index=0, threshold=0.5)
    model = build(
        'mmseg',
        dict(
            type='EncoderDecoder',
            backbone=dict(type=Layers, layers=[]),
            decode_head=dict(head, num_classes=2, out_channels=out_channels, dropout_ratio=0.0),
            data_preprocessor=dict(type='SegDataPreProcessor', mean=MEAN, std=STD),
            test_cfg=ConfigDict(mode='whole'),
        ),
    )
    (image,) = random_images(SIZE)
    labels = torch.randint(0, 2, (1, *SIZE))
    labels[0, 2] = UNLABELLED
    sample = SegDataSample(metainfo=dict(img_path='a.png', ori_shape=SIZE, img_shape=SIZE))
    sample.gt_sem_seg = PixelData(data=labels)
    (attacked,) = attack_batch(attack, model, dict(inputs=[image], data_samples=[sample]))

    weight = model.decode_head.conv_seg.weight[:, :, 0, 0]
    towards_one = weight[0] if out_channels == 1 else weight[1] - weight[0]
    sign = torch.where(labels == 0, 1, -1) * towards_one.sign()[:, None, None]
    worst = (image + attack.epsilon * sign).clamp(0, PIXEL_MAX)
    labelled = (labels[0] != UNLABELLED).expand(3, *SIZE)
    torch.testing.assert_close(attacked[labelled], worst[labelled])
    if not attack.random_start:
        assert torch.equal(attacked[~labelled], image[~labelled].float())


@pytest.fixture(scope='module')
def curved_classifier() -> nn.Module:
    """A small convolutional network for images of any size."""
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.GELU(), nn.Conv2d(8, 8, 3, stride=2), nn.GELU()]
    return classifier([*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()], 8, 4)


def losses(model: nn.Module, images: list[Tensor], labels: list[int]) -> Tensor:
    """Cross-entropy of each image by itself."""
    inputs = (model.data_preprocessor(dict(inputs=[image]))['inputs'] for image in images)
    logits = torch.cat([model(each, mode='tensor') for each in inputs])
    return F.cross_entropy(logits, torch.tensor(labels), reduction='none')


def test_more_steps_are_worse_than_one(curved_classifier: nn.Module) -> None:
    """Of images of several sizes."""
    images, labels = random_images((20, 28), (33, 17), (20, 28), (20, 28)), [0, 1, 2, 3]
    found = [attack_batch(each, curved_classifier, batch_of(images, labels)) for each in (fgsm(24), pgd(24, 20))]
    before, fast, slow = (losses(curved_classifier, each, labels) for each in (images, *found))
    assert (before < fast).all() and fast.sum() < slow.sum()


def test_random_starts_depend_on_the_image_alone(curved_classifier: nn.Module) -> None:
    """Not on the batch, which may be a list or stacked."""
    attack, batch = pgd(4), batch_of(random_images(*[(20, 28)] * 3), [0, 1, 2])
    together = attack_batch(attack, curved_classifier, batch)
    for image, sample, found in zip(batch['inputs'], batch['data_samples'], together):
        (alone,) = attack_batch(attack, curved_classifier, dict(inputs=image[None], data_samples=[sample]))
        torch.testing.assert_close(alone, found, atol=1e-3, rtol=0)


def test_refuses_what_has_no_single_class() -> None:
    with pytest.raises(InputError, match='only classifiers of one class an image and segmentors'):
        attack_batch(fgsm(1), nn.Identity(), batch_of(random_images(SIZE), [[0, 1]]))
