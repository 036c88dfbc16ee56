"""Our models of timm in transformers, segmentation-models-pytorch, Lightning, Accelerate; docs/other_libraries.md."""

import re
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models import _registry
from torch import Tensor

from tests.docs.blocks import read_blocks
from tests.needs import module_needs
from tests.systems.timm_models.classifiers import ARCH, NAMES

pytestmark = module_needs('accelerate', 'lightning', 'segmentation_models_pytorch', 'transformers')

import segmentation_models_pytorch as smp  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoBackbone, TimmBackboneConfig  # noqa: E402

PYRAMIDS = ('TransNeXt', 'GABSwin')
# Mask2Former and DPT take four stages or blocks, which these have.
FOUR_BLOCKS = ARCH | dict(VARS=ARCH['VARS'] | dict(depths=[2, 2]))
# Heads of transformers, made small.
COMMON = dict(num_queries=5, num_labels=3, encoder_layers=1, decoder_layers=1)
DETR = dict(
    COMMON, d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2
)
RT_DETR = dict(DETR, encoder_hidden_dim=32, decoder_in_channels=[32] * 3, num_denoising=2)
MASK2FORMER = dict(COMMON, decoder_layers=2, num_attention_heads=2, train_num_points=50)
MASK2FORMER.update(
    dict.fromkeys('hidden_dim feature_size mask_feature_size encoder_feedforward_dim dim_feedforward'.split(), 32)
)


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give names of timm the small variants of their classes, for what takes a name alone."""
    for backbone, timm_name in [*NAMES.items(), ('TransNeXt', 'transnext_tiny')]:
        entry = partial(_registry._model_entrypoints[timm_name], arch=FOUR_BLOCKS[backbone])
        monkeypatch.setitem(_registry._model_entrypoints, timm_name, entry)


@pytest.mark.parametrize(
    ('host', 'name'),
    [(host, name) for host in ('Detr', 'Mask2Former') for name in NAMES] + [('RTDetr', name) for name in PYRAMIDS],
)
def test_trains_and_is_saved(host: str, name: str, tmp_path: Path) -> None:
    """Loss, a gradient of every parameter, and the same outputs after `save_pretrained` and `from_pretrained`."""
    count = len(timm.create_model(NAMES[name]).feature_info)
    four = [count * (index + 1) // 4 - 1 for index in range(4)]  # stages, of plain models blocks with the last
    indices = dict(Detr=[-1], RTDetr=[1, 2, 3], Mask2Former=four)[host]
    options = dict(Detr=DETR, RTDetr=RT_DETR, Mask2Former=MASK2FORMER)[host]
    options = dict(options, backbone_config=TimmBackboneConfig(backbone=NAMES[name], out_indices=indices))
    if host == 'RTDetr':
        options['encoder_in_channels'] = AutoBackbone.from_config(options['backbone_config']).channels
    task = 'ForUniversalSegmentation' if host == 'Mask2Former' else 'ForObjectDetection'
    model = getattr(transformers, host + task)(getattr(transformers, f'{host}Config')(**options)).train()
    x = torch.randn(2, 3, *((64, 96) if host == 'RTDetr' else (65, 97)))
    classes = torch.tensor([0, 2])
    if host == 'Mask2Former':
        masks = torch.zeros(2, *x.shape[2:])
        masks[0, :30], masks[1, 30:] = 1, 1
        targets = dict(mask_labels=[masks] * 2, class_labels=[classes] * 2)
    else:
        boxes = torch.tensor([[0.3, 0.4, 0.2, 0.2], [0.6, 0.5, 0.3, 0.4]])
        targets = dict(labels=[dict(class_labels=classes, boxes=boxes)] * 2)
    loss = model(pixel_values=x, **targets).loss
    assert loss.isfinite()
    loss.backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []

    model.eval().save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected, outputs = (m(pixel_values=x).to_tuple() for m in (model, again))
    tensors = [(a, b) for a, b in zip(expected, outputs, strict=True) if isinstance(a, Tensor)]
    assert tensors
    for a, b in tensors:
        torch.testing.assert_close(b, a, rtol=0, atol=0)


@pytest.mark.parametrize('name', NAMES)
def test_segments_with_smp(name: str) -> None:
    """Images of four channels, in Unet of any size, else of multiples of the stride."""
    channels = dict(decoder_intermediate_channels=(8,) * 4, decoder_fusion_channels=8)
    pad = True if name == 'GABSwin' else None
    hosts = [(smp.DPT, dict(channels, decoder_readout='ignore', pad_small_map=pad), [(64, 96)])]
    if name in PYRAMIDS:
        hosts += [(smp.UPerNet, dict(decoder_channels=16), [(64, 96)])]
        hosts += [(smp.Unet, dict(decoder_channels=(16, 16, 8, 8, 8)), [(64, 96), (65, 97)])]
    for host, options, sizes in hosts:
        model = host(f'tu-{NAMES[name]}', encoder_weights=None, in_channels=4, classes=3, **options)
        for size in sizes:
            masks = model.train()(torch.randn(2, 4, *size))
            assert masks.shape == (2, 3, *size)
        masks.sum().backward()
        weight = model.encoder.model.get_parameter(f'backbone.{model.encoder.model.backbone.first_conv}.weight')
        assert weight.shape[1] == 4 and weight.grad.abs().sum() > 0


def equal(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    expected = {name: value.cpu() for name, value in expected.items()}
    torch.testing.assert_close({name: value.cpu() for name, value in weights.items()}, expected, rtol=0, atol=0)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code runs, with narrow models, and each of the three trainings learns; what it saved is what it had."""
    monkeypatch.chdir(tmp_path)
    file = 'transnext_tiny_224_1k.pth'
    weights = timm.create_model('transnext_tiny').state_dict()
    torch.save(weights, file)
    pervit = timm.create_model('pervit_tiny').state_dict()
    torch.save(pervit, 'pervit_tiny.pth')
    monkeypatch.setattr('timm.models._hub.hf_hub_download', lambda *args, **kwargs: file)
    # Lightning puts back the handlers of signals that it has found, and Python does not know those of faulthandler:
    # if the process crashed in a later test, nothing would say where.
    connector = 'lightning.pytorch.trainer.connectors.signal_connector._SignalConnector'
    monkeypatch.setattr(f'{connector}.register_signal_handlers', lambda self: None)
    narrow = dict(Mask2FormerConfig=MASK2FORMER, RTDetrConfig=RT_DETR, DetrConfig=DETR)

    def narrowed(match: re.Match) -> str:
        return f'{match[1]}({match[2]}, **{dict(narrow[match[1]], num_labels=2)})'

    names = {}
    for block in read_blocks('docs/other_libraries.md'):
        code = re.sub(r'(\w+Config)\((.*), num_labels=2\)', narrowed, block.text)
        torch.manual_seed(0)
        exec(code.replace('learning_rate=1e-4', 'learning_rate=3e-3'), names)
        if block.name == 'transformers, 2':
            first = 'stages.0.patch_embed.proj.weight'
            assert torch.equal(names['transnext'].get_parameter(first), weights[f'backbone.{first}'])
        if block.name == 'transformers, 3':
            losses = [entry['loss'] for entry in names['trainer'].state.log_history if 'loss' in entry]
            assert len(losses) == 10 and sum(losses[-3:]) < 0.8 * sum(losses[:3])
            equal(names['again'].state_dict(), names['model'].state_dict())
        if block.name == 'Lightning':
            loss = names['trainer'].callback_metrics['loss']
            equal(names['again'].state_dict(), names['segmentor'].state_dict())
    equal(load_file('unet/model.safetensors'), names['model'].state_dict())
    # Less than the entropy of the classes, which knows how many pixels each has and not where.
    frequencies = torch.stack([labels for _, labels in names['data']]).flatten().bincount() / (4 * 96 * 128)
    entropy = -(frequencies * frequencies.log()).sum()
    assert loss < entropy
    assert sum(names['losses'][-2:]) / 2 < entropy < names['losses'][0]
    equal(names['dpt'].encoder.model.state_dict(), pervit)
