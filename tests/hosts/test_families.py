"""mmdet's and mmseg's own configs, one of each family, with backbones of this package: they learn and predict.

Backbone and channels are exchanged, and there are fewer proposals and queries, for speed; all else is the library's.
The page docs/any_model.md names the families. `make test-peers` runs them, and `make test-all`.
"""

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.structures import PixelData

from bioattn_mm.training.config.loading import load_config
from bioattn_mm.training.config.pipelines import as_list
from tests.hosts.inputs import after_a_step, check_predictions, inputs_for
from tests.systems.common.small_backbones import CASES

SYSTEMS = ('TransNeXt', 'ConViT', 'PerViT', 'GABViT', 'VARS')
SIZE = (64, 96)  # of the images; RTMDet and YOLOX take multiples of 32
STRIDES = (4, 8, 16, 32)
# Channels of the pyramid of a plain backbone.
WIDTH = 32
FAMILIES = {
    'mmdet': """
        atss/atss_r50_fpn_1x_coco autoassign/autoassign_r50-caffe_fpn_1x_coco
        cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco centernet/centernet-update_r50-caffe_fpn_ms-1x_coco
        condinst/condinst_r50_fpn_ms-poly-90k_coco_instance conditional_detr/conditional-detr_r50_8xb2-50e_coco
        dab_detr/dab-detr_r50_8xb2-50e_coco ddod/ddod_r50_fpn_1x_coco ddq/ddq-detr-4scale_r50_8xb2-12e_coco
        deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco detr/detr_r50_8xb2-150e_coco
        dynamic_rcnn/dynamic-rcnn_r50_fpn_1x_coco fcos/fcos_r50-caffe_fpn_gn-head_1x_coco
        foveabox/fovea_r50_fpn_4xb4-1x_coco free_anchor/freeanchor_r50_fpn_1x_coco fsaf/fsaf_r50_fpn_1x_coco
        gfl/gfl_r50_fpn_1x_coco ghm/retinanet_r50_fpn_ghm-1x_coco grid_rcnn/grid-rcnn_r50_fpn_gn-head_1x_coco
        htc/htc-without-semantic_r50_fpn_1x_coco libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco
        maskformer/maskformer_r50_ms-16xb1-75e_coco ms_rcnn/ms-rcnn_r50-caffe_fpn_1x_coco
        nas_fcos/nas-fcos_r50-caffe_fpn_nashead-gn-head_4xb4-1x_coco panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco
        pisa/faster-rcnn_r50_fpn_pisa_1x_coco point_rend/point-rend_r50-caffe_fpn_ms-1x_coco
        reppoints/reppoints-moment_r50_fpn_1x_coco retinanet/retinanet_r50_fpn_1x_coco
        sabl/sabl-retinanet_r50_fpn_1x_coco solo/decoupled-solo-light_r50_fpn_3x_coco
        solov2/solov2-light_r50_fpn_ms-3x_coco sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco tood/tood_r50_fpn_1x_coco
        vfnet/vfnet_r50_fpn_1x_coco yolact/yolact_r50_1xb8-55e_coco yolof/yolof_r50-c5_8xb8-1x_coco
        yolox/yolox_tiny_8xb8-300e_coco
    """.split(),
    'mmseg': """
        ann/ann_r50-d8_4xb4-160k_ade20k-512x512 apcnet/apcnet_r50-d8_4xb4-160k_ade20k-512x512
        ccnet/ccnet_r50-d8_4xb4-160k_ade20k-512x512 danet/danet_r50-d8_4xb4-160k_ade20k-512x512
        deeplabv3/deeplabv3_r50-d8_4xb4-160k_ade20k-512x512
        deeplabv3plus/deeplabv3plus_r50-d8_4xb4-160k_ade20k-512x512 emanet/emanet_r50-d8_4xb2-80k_cityscapes-512x1024
        dnlnet/dnl_r50-d8_4xb4-160k_ade20k-512x512 encnet/encnet_r50-d8_4xb4-160k_ade20k-512x512
        fcn/fcn_r50-d8_4xb4-160k_ade20k-512x512 gcnet/gcnet_r50-d8_4xb4-160k_ade20k-512x512
        isanet/isanet_r50-d8_4xb4-160k_ade20k-512x512 knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512
        maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512 mask2former/mask2former_r50_8xb2-160k_ade20k-512x512
        nonlocal_net/nonlocal_r50-d8_4xb4-160k_ade20k-512x512 ocrnet/ocrnet_hr18_4xb4-160k_ade20k-512x512
        point_rend/pointrend_r50_4xb4-160k_ade20k-512x512 psanet/psanet_r50-d8_4xb4-160k_ade20k-512x512
        pspnet/pspnet_r50-d8_4xb4-160k_ade20k-512x512 segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512
        sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512 upernet/upernet_r50_4xb4-160k_ade20k-512x512
    """.split(),
}
CONFIGS = [f'{library}::{name}.py' for library, names in FAMILIES.items() for name in names]
# Under these, each system runs.
WITH_EACH = (
    'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py',
    'mmdet::dyhead/atss_r50_fpn_dyhead_1x_coco.py',
)
CASES_OF_PAGE = [(config, SYSTEMS[i % len(SYSTEMS)]) for i, config in enumerate(CONFIGS)]
CASES_OF_PAGE += [(config, system) for config in WITH_EACH for system in SYSTEMS]


def test_page_names_the_families(root: Path) -> None:
    page = (root / 'docs/any_model.md').read_text()
    for system in SYSTEMS:
        (line,) = (line for line in page.splitlines() if re.match(rf'\| `{system}` \| [a-z]', line))
        for library, cell in zip(FAMILIES, line.split('|')[2:], strict=False):
            named = re.findall(r'\w+', cell)
            assert named == [
                config.split('::')[1].split('/')[0]
                for config, with_it in CASES_OF_PAGE[: len(CONFIGS)]
                if with_it == system and config.startswith(library)
            ]
    assert len({config for config, _ in CASES_OF_PAGE}) >= 40
    for config in WITH_EACH:
        assert config.split('::')[1].split('/')[0] in page


@pytest.mark.every_config
@pytest.mark.parametrize(('path', 'system'), CASES_OF_PAGE)
def test_learns_and_predicts(path: str, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'config.py').write_text(f'_base_ = {path!r}')
    config = load_config(str(tmp_path / 'config.py'))
    exchange_backbone(config.model, system)
    few_proposals(config.model)
    for key in ('epoch', 'iter'):  # which TOOD and YOLOX ask for
        monkeypatch.setitem(MessageHub.get_current_instance().runtime_info, key, 0)
    model = after_a_step(config, annotated(config))
    assert type(model.backbone).__module__.startswith('bioattn_mm.')
    gradients = [parameter.grad for parameter in model.backbone.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)
    check_predictions(model, annotated(config), SIZE)


def exchange_backbone(model: ConfigDict, system: str) -> None:
    """Give a model a narrow backbone, after it a pyramid if it is plain, and the channels to what follows."""
    case = CASES[system]
    (neck, *others) = as_list(model.get('neck')) or [None]
    want = neck.in_channels if neck else None
    strides = STRIDES if neck is None else STRIDES[-len(as_list(want)) :] if isinstance(want, list) else STRIDES[-1:]
    plain = case.num_stages == 12
    indices = (11,) if plain else tuple(STRIDES.index(stride) for stride in strides)
    model.backbone = dict(type=f'bioattn_mm.{system}', arch=case.arch, out_indices=indices, **case.options)
    model.pop('pretrained', None)
    model.init_cfg = None
    channels = [WIDTH] * len(strides) if plain else [case.out_channels[index] for index in indices]
    if neck is not None:
        neck.in_channels = channels if isinstance(want, list) else channels[-1]
        neck.update(dict(start_level=0) if neck.get('start_level', 0) >= len(channels) else {})
    if plain:
        pyramid = dict(type='bioattn_mm.SimpleFeaturePyramid', in_channels=case.out_channels[-1], out_channels=WIDTH)
        pyramid['scales'] = [16 / stride for stride in strides]
        model.neck = [pyramid, *([neck, *others] if neck else [])]
    if neck is None:
        for key in ('decode_head', 'auxiliary_head', 'panoptic_head'):
            for head in as_list(model.get(key)):
                set_channels(head.get('kernel_generate_head', head), channels)


def set_channels(head: ConfigDict, channels: list[int]) -> None:
    """Tell a head of mmseg, which reads the maps itself, their channels."""
    index = head.get('in_index', -1)
    if isinstance(head.in_channels, list) and isinstance(index, int):  # Mask2Former reads all
        index = list(range(len(channels)))
    head.in_channels = channels[index] if isinstance(index, int) else [channels[i] for i in index]
    if 'c1_in_channels' in head:
        head.c1_in_channels = channels[0]


def few_proposals(node: object) -> None:
    """Let RPNs give 20 proposals, for speed, and transformers 50 queries, of which small images have no more."""
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        few_proposals(child)
    for key, value in dict(nms_pre=100, max_per_img=20, num_queries=50).items():
        if isinstance(node, dict) and key in node:
            node[key] = value


def annotated(config: Config) -> dict:
    """Images with boxes, masks and, for panoptic models, classes of the pixels."""
    masks = re.search(r"'with_mask': True|LoadPanoptic", str(config.train_dataloader))
    inputs = inputs_for(config, SIZE, with_mask=bool(masks))
    for sample in inputs['data_samples']:
        if config.default_scope == 'mmdet':
            sample.gt_sem_seg = PixelData(sem_seg=torch.randint(2, (1, *SIZE)))
            sample.set_metainfo(dict(batch_input_shape=SIZE, pad_shape=SIZE))
    return inputs
