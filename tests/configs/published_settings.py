"""The published settings of every config, with their sources: what the configs must build.

A row is (configs, setting, value, source). `configs` is a regular expression for 'system/config'; of the rows of a
setting that match a config, the last one counts, so exceptions stand below the rule. What each setting is measured on
is in `test_published_settings.py`.
"""

SOURCES = dict(
    transnext='TransNeXt, released configs and code (github.com/DaiShiResearch/TransNeXt)',
    transnext_ms='TransNeXt, released configs upernet_*_ms and upernet_*_ms_extrapolation',
    transnext_paper='TransNeXt (CVPR 2024), downstream tasks; the code of the released Mask R-CNN has 0.4/0.6/0.7',
    convit='ConViT, default of the released training code (github.com/facebookresearch/convit)',
    pervit='PerViT, training commands of the release (github.com/juhongm999/pervit)',
    vars='VARS, default of the released training code (github.com/bfshi/VARS); for num_steps the paper says 3',
    vars_paper='VARS (ICML 2022): 3 steps; no weights are released that want another number',
    timm='timm, pretrained configuration of vit_relpos_{small,base}_patch16_224: mean = std = 0.5',
    swin='Swin, mask-rcnn_swin-{t,s}-p4-w7_fpn_ms-crop-3x in mmdet, upernet and mask2former in mmseg',
    convnext='ConvNeXt, mask-rcnn_convnext-t-p4-w7_fpn in mmdet, convnext-tiny_upernet in mmseg',
    mmdet='mmdet, dino-{4,5}scale, (cascade-)mask-rcnn_r50_fpn, retinanet_r50_fpn_1x, mask2former_swin-{t,s}',
    mask2former='Mask2Former, released configs of ADE20K (github.com/facebookresearch/Mask2Former)',
    mmseg='mmseg, mask2former_r50_8xb2-160k, upernet_swin, segmentation of ADE20K',
    beit='BEiT, upernet in mmseg: layer decay 0.9, weight decay 0.05',
    deit='DeiT and ViT, upernet in mmseg: one learning rate, drop path 0.1',
    vitdet='ViTDet (ECCV 2022): strides 4 to 64 from the last map',
    deit_in1k='DeiT, default of the released training code, from which that of the systems and RVT is made',
    convit_paper='ConViT (ICML 2021), section 3, of the models with 64 channels a head',
    swin_in1k='Swin, swin-small_16xb64_in1k in mmpretrain',
    gab='GAB, train.py of the authors (github.com/kmbmjn/GaussianAttentionBias), with the settings of its appendix',
    gfnet='GFNet, default of the released training code (github.com/raoyongming/GFNet)',
    timm_sw="timm, recipe 'sw' of vit_relpos_*_patch16_224: Swin's, with averaged weights; decay of timm's train.py",
    chosen='chosen here: the system has no published detectors or segmentors',
)

ALL = '.*'
MASK_RCNN = r'\w+/(cascade_)?mask_rcnn_'
RETINANET = r'\w+/retinanet_'
DINO = r'\w+/dino_'
UPERNET = r'\w+/upernet_'
MASK2FORMER = r'\w+/mask2former_'
MASK2FORMER_COCO = r'\w+/mask2former_\w+_coco'  # instance and panoptic segmentation
MASK2FORMER_ADE20K = r'\w+/mask2former_\w+_ade20k_(instance|panoptic)'
MASK2FORMER_MMDET = rf'{MASK2FORMER_COCO}|{MASK2FORMER_ADE20K}'
ADE20K_PANOPTIC = r'\w+/mask2former_\w+_ade20k_panoptic'
QUERIES = rf'{DINO}|{MASK2FORMER}'
COCO = rf'{MASK_RCNN}|{DINO}|{RETINANET}'
ADE20K = rf'{UPERNET}|{MASK2FORMER}'
GAB_VIT = r'gab/\w+_vit_'
CONVNEXT = r'baselines/\w+_convnext_'
MULTI_SCALE_3X = r'gab/mask_rcnn_swin'
PLAIN = rf'(convit|pervit|vars)/|{GAB_VIT}'
IN1K = r'\w+/[\w-]+_(in1k|in100|cifar100)'  # CIFAR-100 and a part of the classes have the same recipe
PLAIN_MASK2FORMER = r'(convit|pervit|vars)/mask2former|gab/mask2former_vit'
SMALL_DATA = r'(gab|vars)/[\w-]+_1xb64_'  # GAB's data sets, and PACS of VARS
FINETUNE = rf'{IN1K}-384px'
TRANSNEXT_IN1K = r'transnext/[\w-]+_(in1k|cifar100)'
CONVIT_PLUS = r'convit/[\w-]+-plus[-_]'
GAB_IN1K = r'gab/[\w-]+_in1k'
GAB_VIT_IN1K = r'gab/(gabvit|vit-relpos)-[\w-]+_in1k'
GFNET = 'vars/gfnet-'

# Parts of names of parameters: of TransNeXt's attention, of the tokens of a plain backbone, of Mask2Former's queries.
BIASES = {'scale.query_embedding', 'scale.temperature', 'window_bias', 'position_bias'}
TOKENS = {'backbone.pos_embed', 'backbone.cls_token', 'flat'}
SWIN_PARTS = {'relative_position_bias_table', 'norm', 'gaussian'}
QUERY_PARTS = {'query_embed', 'query_feat', 'level_embed'}

IMAGENET = dict(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), bgr_to_rgb=True)
MULTI_SCALE = ('RandomChoiceResize', dict(scales=[(side, 1333) for side in range(480, 801, 32)], keep_ratio=True))
FLIP = ('RandomFlip', dict(prob=0.5))
RAND_AUGMENT = dict(policies='timm_increasing', num_policies=2, total_level=10, magnitude_level=9, magnitude_std=0.5)
# timm's 'rand-m9-mstd0.5-inc1' fills with the mean of ImageNet, here as BGR; so does random erasing with noise.
BGR_MEAN, BGR_STD = (IMAGENET[key][::-1] for key in ('mean', 'std'))
RAND_AUGMENT['hparams'] = dict(pad_val=[round(value) for value in BGR_MEAN], interpolation='bicubic')
FILL = dict(fill_color=list(BGR_MEAN), fill_std=list(BGR_STD))
ERASING = dict(erase_prob=0.25, mode='rand', min_area_ratio=0.02, max_area_ratio=1 / 3, **FILL)
BICUBIC = dict(backend='pillow', interpolation='bicubic')


def resize(*scale: int) -> tuple:
    return 'Resize', dict(scale=scale, keep_ratio=True)


def short_sides(side: int, longest: int) -> tuple:
    """Of half of a side to twice as long."""
    scales = [side * tenths // 10 for tenths in range(5, 21)]
    return 'RandomChoiceResize', dict(scales=scales, resize_type='ResizeShortestEdge', max_size=longest)


LARGE_JITTER = dict(scale=(1024, 1024), ratio_range=(0.1, 2.0), resize_type='Resize', keep_ratio=True)
SQUARE = dict(crop_type='absolute', recompute_bbox=True, allow_negative_crop=True)
JITTER = [FLIP, ('RandomResize', LARGE_JITTER), ('RandomCrop', SQUARE | dict(crop_size=(1024, 1024)))]
CROP_640 = [short_sides(640, 2560), ('RandomCrop', SQUARE | dict(crop_size=(640, 640)))]
WITH_OBJECTS = ('FilterAnnotations', dict(min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True))
CROP_512 = ('RandomCrop', dict(crop_size=(512, 512), cat_max_ratio=0.75))
HALF_TO_TWICE = ('RandomResize', dict(scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True))
DISTORTION = ('PhotoMetricDistortion', {})
ROTATED_CROPS = [
    ('NumpyToPIL', dict(to_rgb=True)),
    ('torchvision/RandomResizedCrop', dict(size=256, scale=(0.8, 1.0))),
    ('torchvision/RandomRotation', dict(degrees=15)),
    ('torchvision/ColorJitter', dict(brightness=0.4, contrast=0.4, saturation=0.4)),
    ('torchvision/RandomHorizontalFlip', {}),
    ('torchvision/CenterCrop', dict(size=224)),
    ('PILToNumpy', dict(to_bgr=True)),
]


def multi_scale_crops(long_side: int) -> list:
    """The training pipeline of DETR's successors; the long side is that of the resize before the crop."""
    resize = ('RandomChoiceResize', dict(scales=[(side, long_side) for side in (400, 500, 600)], keep_ratio=True))
    crop = ('RandomCrop', dict(crop_type='absolute_range', crop_size=(384, 600), allow_negative_crop=True))
    return [FLIP, ('RandomChoice', [[MULTI_SCALE], [resize, crop, MULTI_SCALE]])]


def augmented_crops(size: int) -> list:
    """The training pipeline of DeiT."""
    crop = ('RandomResizedCrop', dict(scale=size, **BICUBIC))
    return [crop, FLIP, ('RandAugment', RAND_AUGMENT), ('RandomErasing', ERASING)]


def centre_crop(short_side: int, size: int, interpolation: str = 'bicubic') -> list:
    """The test pipeline of DeiT."""
    resize = dict(scale=short_side, edge='short', backend='pillow', interpolation=interpolation)
    return [('ResizeEdge', resize), ('CenterCrop', dict(crop_size=size))]


def warm_up_and_cosine(epochs: int, start_factor: float = 1e-3) -> list:
    """From 1e-6 in some epochs, then a cosine down to 1e-5 in 300."""
    warm_up = dict(type='LinearLR', start_factor=start_factor, by_epoch=True, begin=0, end=epochs)
    cosine = dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=epochs, end=300)
    return [dict(warm_up, convert_to_iter_based=True), cosine]


def linear(start_factor: float, end: int) -> dict:
    return dict(type='LinearLR', start_factor=start_factor, by_epoch=False, begin=0, end=end)


def steps(milestones: list[int], end: int, by_epoch: bool = True) -> dict:
    return dict(type='MultiStepLR', milestones=milestones, gamma=0.1, by_epoch=by_epoch, begin=0, end=end)


POLY = dict(type='PolyLR', eta_min=0.0, by_epoch=False, end=160000)
# How Mask2Former's segments are tested.
SEGMENTS = dict(segments=True, instances=True, per_image=100, overlap=0.8, least=0.8)
RATIOS = dict(anchor_ratios=[0.5, 1.0, 2.0])
MASK_RCNN_HEAD = dict(classes=80, regions=512, positive=0.25, proposals=1000, anchor_scales=[8], **RATIOS)
CASCADE = dict(proposals=2000, stages=[(0.5, 1), (0.6, 0.5), (0.7, 0.25)])
RETINANET_HEAD = dict(classes=80, anchor_scale=4, octaves=3, strides=[8, 16, 32, 64, 128], **RATIOS)
DINO_HEAD = dict(classes=80, queries=900, layers=(6, 6), levels=4, denoising=100, costs=[2.0, 5.0, 2.0])
UPERNET_HEAD = dict(channels=512, pool_scales=(1, 2, 3, 6), auxiliary_channels=256, auxiliary_weight=0.4, classes=150)
MASK2FORMER_HEAD = dict(queries=100, layers=(6, 9), points=12544, weights=[2.0, 5.0, 5.0], no_object=0.1)


def adamw(lr: float, weight_decay: float) -> dict:
    return dict(type='AdamW', lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)


TRANSNEXT_WEIGHTS = 'https://huggingface.co/DaiShiResearch/transnext-{0}-224-1k/resolve/main/transnext_{0}_224_1k.pth'
CONVIT = 'https://dl.fbaipublicfiles.com/convit'
TIMM = 'https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-tpu-weights'
SWIN = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0'
ONEDL = 'https://mmassets.onedl.ai'
MMSEG_SWIN = 'mmsegmentation/v0.5/pretrain/swin/swin_tiny_patch4_window7_224_20220317-1cdeb081.pth'
CONVNEXT_FILE = 'convnext-tiny_3rdparty_32xb128-noema_in1k_20220301-795e9634.pth'

SETTINGS = [
    # Images a step: 8 GPUs with 2 each. TransNeXt's DINO accumulates 2 x 1 instead.
    (ALL, 'images per GPU', 2, 'transnext'),
    (ALL, 'accumulated steps', 1, 'mmdet'),
    (ALL, 'base batch size', 16, 'transnext'),
    # Optimizer. In float32; the authors' Mask R-CNN Base and Swin's Mask R-CNN are the `--amp` of tools/train.py.
    (ALL, 'precision', 'OptimWrapper', 'transnext'),
    (COCO, 'optimizer', adamw(1e-4, 0.05), 'transnext'),
    (r'gab/dino_(5scale_)?swin', 'optimizer', adamw(1e-4, 1e-4), 'mmdet'),
    (UPERNET, 'optimizer', adamw(6e-5, 0.05), 'transnext'),
    (r'gab/upernet_swin', 'optimizer', adamw(6e-5, 0.01), 'swin'),
    (MASK2FORMER, 'optimizer', adamw(1e-4, 0.05), 'mmseg'),
    (ALL, 'gradient clipping', None, 'transnext'),
    (DINO, 'gradient clipping', 0.1, 'mmdet'),
    (MASK2FORMER, 'gradient clipping', 0.01, 'mmseg'),
    # Learning rates, as multiples of the optimizer's. Of a plain backbone with layer decay from its input to its end.
    (ALL, 'rates of neck and heads', [1.0], 'transnext'),
    (ALL, 'rates of the backbone', [1.0], 'transnext'),
    (PLAIN, 'rates of the backbone', [1.0], 'deit'),
    (QUERIES, 'rates of the backbone', [0.1], 'transnext'),
    (r'gab/(mask_rcnn|upernet)_vit', 'rates of the backbone', [0.9**n for n in range(13, 0, -1)], 'beit'),
    (r'gab/', 'rates of the Gaussians', [1.0], 'chosen'),
    # Weight decay: parameters without, by parts of their names; 'flat' are those of one dimension.
    ('transnext/', 'no weight decay', {*BIASES, 'norm'}, 'transnext'),
    (r'transnext/dino_', 'no weight decay', {*BIASES, 'flat'}, 'transnext'),
    (r'transnext/mask2former_', 'no weight decay', {*BIASES, *QUERY_PARTS, 'flat'}, 'transnext'),
    (PLAIN, 'no weight decay', {*TOKENS, 'gaussian'}, 'beit'),
    (PLAIN_MASK2FORMER, 'no weight decay', {*TOKENS, *QUERY_PARTS, 'gaussian'}, 'mmseg'),
    (r'(gab|baselines)/\w+_swin_', 'no weight decay', SWIN_PARTS, 'swin'),
    (CONVNEXT, 'no weight decay', {'flat'}, 'convnext'),
    (r'baselines/mask2former_convnext', 'no weight decay', {*QUERY_PARTS, 'flat'}, 'mmseg'),
    (r'(gab|baselines)/mask2former_swin', 'no weight decay', {*SWIN_PARTS, *QUERY_PARTS, '.gn.'}, 'mmseg'),
    # Schedule.
    (rf'{MASK_RCNN}|{RETINANET}', 'loop', dict(epochs=12, validation=1), 'transnext'),
    (DINO, 'loop', dict(epochs=12, validation=1), 'mmdet'),
    (MULTI_SCALE_3X, 'loop', dict(epochs=36, validation=1), 'swin'),
    (UPERNET, 'loop', dict(iterations=160000, validation=16000), 'transnext'),
    (MASK2FORMER, 'loop', dict(iterations=160000, validation=5000), 'transnext'),
    (MASK2FORMER_COCO, 'loop', dict(iterations=368750, validation=5000), 'mmdet'),
    (rf'{MASK_RCNN}|{RETINANET}', 'schedule', [linear(0.001, 500), steps([8, 11], 12)], 'transnext'),
    (MULTI_SCALE_3X, 'schedule', [linear(0.001, 1000), steps([27, 33], 36)], 'swin'),
    (DINO, 'schedule', [steps([11], 12)], 'mmdet'),
    (UPERNET, 'schedule', [linear(1e-6, 1500), POLY | dict(power=1.0, begin=1500)], 'transnext'),
    (MASK2FORMER, 'schedule', [POLY | dict(power=0.9, begin=0)], 'mmseg'),
    (MASK2FORMER_COCO, 'schedule', [steps([327778, 355092], 368750, by_epoch=False)], 'mmdet'),
    # The best checkpoint is chosen among those of every validation.
    (COCO, 'best checkpoint', 'coco/bbox_mAP', 'mmdet'),
    (ADE20K, 'best checkpoint', 'mIoU', 'mmseg'),
    (MASK2FORMER_MMDET, 'best checkpoint', 'coco/segm_mAP', 'mmdet'),
    (r'\w+/mask2former_\w+_panoptic', 'best checkpoint', 'coco_panoptic/PQ', 'mmdet'),
    # Images.
    (ALL, 'normalisation', IMAGENET, 'transnext'),
    (GAB_VIT, 'normalisation', dict(mean=(127.5,) * 3, std=(127.5,) * 3, bgr_to_rgb=True), 'timm'),
    (rf'{MASK_RCNN}|{RETINANET}', 'padding', dict(train=32, test=32), 'mmdet'),
    (DINO, 'padding', dict(train=1, test=1), 'mmdet'),
    (UPERNET, 'padding', dict(train=(512, 512), test=None), 'mmseg'),
    (MASK2FORMER, 'padding', dict(train=(512, 512), test=32), 'mmseg'),
    (MASK2FORMER_COCO, 'padding', dict(train=(1024, 1024), test=32), 'mmdet'),
    (MASK2FORMER_ADE20K, 'padding', dict(train=(640, 640), test=32), 'mask2former'),
    (rf'{MASK_RCNN}|{RETINANET}', 'training images', [resize(1333, 800), FLIP], 'transnext'),
    (MULTI_SCALE_3X, 'training images', multi_scale_crops(1333), 'swin'),
    (DINO, 'training images', multi_scale_crops(4200), 'mmdet'),
    (UPERNET, 'training images', [HALF_TO_TWICE, CROP_512, FLIP, DISTORTION], 'transnext'),
    (MASK2FORMER, 'training images', [short_sides(512, 2048), CROP_512, FLIP, DISTORTION], 'mmseg'),
    (MASK2FORMER_COCO, 'training images', [*JITTER, WITH_OBJECTS], 'mmdet'),
    (rf'{MASK2FORMER_COCO}_panoptic', 'training images', JITTER, 'mmdet'),
    (MASK2FORMER_ADE20K, 'training images', [*CROP_640, WITH_OBJECTS, DISTORTION, FLIP], 'mask2former'),
    (ADE20K_PANOPTIC, 'training images', [*CROP_640, DISTORTION, FLIP], 'mask2former'),
    (rf'{MASK_RCNN}|{RETINANET}', 'images without objects', False, 'mmdet'),
    (MASK2FORMER_MMDET, 'images without objects', False, 'mmdet'),
    (ADE20K_PANOPTIC, 'images without objects', True, 'mask2former'),
    (DINO, 'images without objects', True, 'mmdet'),
    (COCO, 'test images', [resize(1333, 800)], 'mmdet'),
    (ADE20K, 'test images', [resize(2048, 512)], 'mmseg'),
    (MASK2FORMER_COCO, 'test images', [resize(1333, 800)], 'mmdet'),
    (MASK2FORMER_ADE20K, 'test images', [resize(2560, 640)], 'mask2former'),
    (ADE20K, 'multi-scale test images', [(4 * side, side) for side in range(256, 897, 128)], 'mmseg'),
    (COCO, 'multi-scale test images', [(1333, 600), (1333, 800), (2000, 1000)], 'chosen'),
    (MASK2FORMER_MMDET, 'multi-scale test images', None, 'mmdet'),
    # Testing.
    (UPERNET, 'testing', dict(mode='slide', crop_size=(512, 512), stride=(341, 341)), 'transnext'),
    (r'transnext/upernet_\w+_ms', 'testing', dict(mode='whole'), 'transnext_ms'),
    (r'gab/upernet_swin', 'testing', dict(mode='whole'), 'swin'),
    (MASK2FORMER, 'testing', dict(mode='whole'), 'mmseg'),
    (MASK2FORMER_MMDET, 'testing', SEGMENTS | dict(segments=False, least=None), 'mmdet'),
    (rf'{MASK2FORMER_COCO}_panoptic', 'testing', SEGMENTS, 'mmdet'),
    (ADE20K_PANOPTIC, 'testing', SEGMENTS | dict(instances=False), 'mask2former'),
    (MASK_RCNN, 'testing', dict(score=0.05, nms=0.5, per_image=100, mask=0.5, proposals=1000), 'mmdet'),
    (RETINANET, 'testing', dict(score=0.05, nms=0.5, per_image=100, candidates=1000), 'mmdet'),
    (DINO, 'testing', dict(per_image=300), 'mmdet'),
    # Heads.
    (MASK_RCNN, 'head', MASK_RCNN_HEAD, 'mmdet'),
    (r'transnext/cascade_mask_rcnn_', 'head', MASK_RCNN_HEAD | CASCADE, 'mmdet'),
    (RETINANET, 'head', RETINANET_HEAD, 'mmdet'),
    (DINO, 'head', DINO_HEAD, 'mmdet'),
    (r'\w+/dino_5scale', 'head', DINO_HEAD | dict(levels=5), 'mmdet'),
    (UPERNET, 'head', UPERNET_HEAD, 'transnext'),
    (MASK2FORMER, 'head', MASK2FORMER_HEAD | dict(classes=150), 'mmseg'),
    (r'\w+/mask2former_\w+_coco', 'head', MASK2FORMER_HEAD | dict(classes=80), 'mmdet'),
    (r'\w+/mask2former_\w+_coco_panoptic', 'head', MASK2FORMER_HEAD | dict(classes=133), 'mmdet'),
    (r'\w+/mask2former_\w+_ade20k_instance', 'head', MASK2FORMER_HEAD | dict(classes=100), 'mask2former'),
    (ADE20K_PANOPTIC, 'head', MASK2FORMER_HEAD | dict(classes=150), 'mask2former'),
    # Normalisation layers.
    (ALL, 'batch norm over all GPUs', False, 'mmdet'),
    (UPERNET, 'batch norm over all GPUs', True, 'transnext'),
    (r'(pervit|vars)/', 'batch norm over all GPUs', True, 'chosen'),
    # The pyramid of plain backbones: its strides. The heads of the others take the backbone's.
    (r'(convit|pervit|vars)/mask_rcnn|gab/mask_rcnn_vit', 'pyramid', (4, 8, 16, 32, 64), 'vitdet'),
    (r'(convit|pervit|vars)/dino|gab/dino_vit', 'pyramid', (8, 16, 32, 64), 'chosen'),
    (r'(convit|pervit|vars)/(upernet|mask2former)|gab/(upernet|mask2former)_vit', 'pyramid', (4, 8, 16, 32), 'deit'),
    # Stochastic depth.
    (rf'transnext/dino_|{MASK_RCNN}|{RETINANET}|transnext/mask2former_', 'drop path', 0.3, 'transnext_paper'),
    (r'transnext/(dino_\w+|mask2former|mask_rcnn)_small', 'drop path', 0.5, 'transnext_paper'),
    (r'transnext/(dino_\w+|mask2former|mask_rcnn)_base', 'drop path', 0.6, 'transnext_paper'),
    (r'transnext/upernet_(micro|tiny)', 'drop path', 0.4, 'transnext'),
    (r'transnext/upernet_small', 'drop path', 0.6, 'transnext'),
    (r'transnext/upernet_base', 'drop path', 0.7, 'transnext'),
    (r'convit/', 'drop path', 0.1, 'convit'),
    (r'pervit/\w+_tiny', 'drop path', 0.0, 'pervit'),
    (r'pervit/\w+_small', 'drop path', 0.1, 'pervit'),
    (GAB_VIT, 'drop path', 0.1, 'deit'),
    (r'gab/(mask_rcnn|dino|dino_5scale)_swin|baselines/mask_rcnn_swin', 'drop path', 0.2, 'swin'),
    (r'(gab|baselines)/(upernet|mask2former)_swin', 'drop path', 0.3, 'swin'),
    (CONVNEXT, 'drop path', 0.4, 'convnext'),
    (r'vars/', 'drop path', 0.1, 'vars'),
    # Position bias of TransNeXt: mode and training size, mode in multi-scale testing.
    (r'transnext/\w*(rcnn|dino|retinanet)_', 'position bias', ('interpolate', 800, 'extrapolate'), 'transnext'),
    (r'transnext/mask2former_', 'position bias', ('interpolate', 512, 'extrapolate'), 'transnext'),
    (r'transnext/mask2former_\w+_coco', 'position bias', ('interpolate', 1024), 'chosen'),
    (r'transnext/mask2former_\w+_ade20k_', 'position bias', ('interpolate', 640), 'chosen'),
    (r'transnext/upernet_', 'position bias', ('interpolate', 512, 'extrapolate'), 'transnext_ms'),
    (r'transnext/upernet_\w+_ms', 'position bias', ('interpolate', 800, 'interpolate'), 'transnext_ms'),
    # Steps of the recurrence of VARS.
    (r'vars/', 'steps', 3, 'vars_paper'),
    (r'vars/\w+_rvt_tiny_vars_s?d_', 'steps', 5, 'vars'),
    (r'vars/[\w-]+[_-](softmax|performer|filter)_', 'steps', None, 'vars_paper'),
    # Pre-trained weights.
    *(
        (rf'transnext/\w+_{arch}_', 'weights', TRANSNEXT_WEIGHTS.format(arch), 'transnext')
        for arch in ('micro', 'tiny', 'small', 'base')
    ),
    *((rf'convit/\w+_{arch}_', 'weights', f'{CONVIT}/convit_{arch}.pth', 'convit') for arch in ('tiny', 'small')),
    *((rf'pervit/\w+_{arch}_', 'weights', f'checkpoints/pervit_{arch}.pth', 'pervit') for arch in ('tiny', 'small')),
    (r'gab/\w+_vit_small', 'weights', f'{TIMM}/vit_relpos_small_patch16_224-sw-ec2778b4.pth', 'timm'),
    (r'(gab|baselines)/\w+_swin_tiny', 'weights', f'{SWIN}/swin_tiny_patch4_window7_224.pth', 'swin'),
    (r'(gab|baselines)/\w+_swin_small', 'weights', f'{SWIN}/swin_small_patch4_window7_224.pth', 'swin'),
    (r'baselines/\w+_swin_tiny_ade20k', 'weights', f'{ONEDL}/{MMSEG_SWIN}', 'swin'),
    (CONVNEXT, 'weights', f'{ONEDL}/mmclassification/v0/convnext/downstream/{CONVNEXT_FILE}', 'convnext'),
    (r'vars/\w+_rvt_tiny_vars_sd_(coco|ade20k)', 'weights', 'checkpoints/vars_rvt_tiny_vars_sd.pth', 'vars'),
    # ImageNet. Images a step: 8 GPUs with 128 each.
    (IN1K, 'images per GPU', 128, 'transnext'),
    (CONVIT_PLUS, 'images per GPU', 64, 'convit_paper'),
    (IN1K, 'base batch size', 1024, 'deit_in1k'),
    (CONVIT_PLUS, 'base batch size', 512, 'convit_paper'),
    # The rates are 5e-4 for 512 images, ConViT+ 4e-4.
    (IN1K, 'optimizer', adamw(1e-3, 0.05), 'deit_in1k'),
    (FINETUNE, 'optimizer', adamw(1e-5, 0.05), 'transnext'),
    (CONVIT_PLUS, 'optimizer', adamw(4e-4, 0.05), 'convit_paper'),
    (r'pervit/pervit-tiny', 'optimizer', adamw(1e-3, 0.03), 'pervit'),
    (TRANSNEXT_IN1K, 'gradient clipping', 1.0, 'transnext'),
    (GAB_IN1K, 'gradient clipping', 5.0, 'swin_in1k'),
    (GFNET, 'gradient clipping', 1.0, 'gfnet'),
    (TRANSNEXT_IN1K, 'no weight decay', {*BIASES, 'flat'}, 'transnext'),
    (r'convit/[\w-]+_(in1k|in100|cifar100)', 'no weight decay', TOKENS, 'convit'),
    (r'(pervit|vars)/[\w-]+_in1k', 'no weight decay', {'backbone.pos_embed', 'flat'}, 'deit_in1k'),
    (GAB_IN1K, 'no weight decay', {'relative_position_bias_table', 'gaussian', 'flat'}, 'swin_in1k'),
    (IN1K, 'loop', dict(epochs=300, validation=1), 'deit_in1k'),
    (FINETUNE, 'loop', dict(epochs=5, validation=1), 'transnext'),
    # timm's cosine counts the epochs of the warm-up, too; the difference is below 2 % of the highest rate.
    (IN1K, 'schedule', warm_up_and_cosine(5), 'deit_in1k'),
    (FINETUNE, 'schedule', [], 'transnext'),
    (CONVIT_PLUS, 'schedule', warm_up_and_cosine(5, start_factor=2.5e-3), 'convit_paper'),
    (r'pervit/pervit-medium', 'schedule', warm_up_and_cosine(20), 'pervit'),
    (GAB_IN1K, 'schedule', warm_up_and_cosine(20), 'swin_in1k'),
    (IN1K, 'best checkpoint', 'accuracy/top1', 'transnext'),
    # Average of the weights: 1 - decay. RVT's code keeps one beside the weights that it validates and publishes.
    (IN1K, 'averaged weights', None, 'transnext'),
    (GAB_VIT_IN1K, 'averaged weights', 0.0002, 'timm_sw'),
    # Images.
    (IN1K, 'repeated augmentation', 3, 'deit_in1k'),
    (GAB_IN1K, 'repeated augmentation', 1, 'swin_in1k'),
    (GFNET, 'repeated augmentation', 1, 'gfnet'),
    (GAB_VIT_IN1K, 'normalisation', dict(mean=(127.5,) * 3, std=(127.5,) * 3, bgr_to_rgb=True), 'timm'),
    (IN1K, 'training images', augmented_crops(224), 'deit_in1k'),
    (rf'{IN1K}-256px', 'training images', augmented_crops(256), 'transnext'),
    (FINETUNE, 'training images', augmented_crops(384), 'transnext'),
    (GFNET, 'training images', augmented_crops(224)[:-1], 'gfnet'),
    (IN1K, 'test images', centre_crop(256, 224), 'deit_in1k'),
    (rf'{IN1K}-256px', 'test images', centre_crop(292, 256), 'transnext'),
    (FINETUNE, 'test images', [('Resize', dict(scale=(384, 384), **BICUBIC))], 'transnext'),
    (GAB_VIT_IN1K, 'test images', centre_crop(248, 224), 'timm'),
    # Batches, one of the two for each.
    (IN1K, 'mixed images', [('Mixup', 0.8), ('CutMix', 1.0)], 'deit_in1k'),
    (FINETUNE, 'mixed images', [('Mixup', 0.8)], 'transnext'),
    (IN1K, 'head', dict(classes=1000, label_smoothing=0.1), 'deit_in1k'),
    (r'\w+/[\w-]+_(in100|cifar100)', 'head', dict(classes=100, label_smoothing=0.1), 'deit_in1k'),
    (IN1K, 'batch norm over all GPUs', False, 'deit_in1k'),
    (r'transnext/transnext-micro', 'drop path', 0.15, 'transnext'),
    (r'transnext/transnext-tiny', 'drop path', 0.25, 'transnext'),
    (r'transnext/transnext-small', 'drop path', 0.45, 'transnext'),
    (r'transnext/transnext-base', 'drop path', 0.6, 'transnext'),
    (r'transnext/transnext-small_\w+-384px', 'drop path', 0.7, 'transnext'),
    (r'transnext/transnext-base_\w+-384px', 'drop path', 0.8, 'transnext'),
    (r'transnext/transnext-2m', 'drop path', 0.15, 'chosen'),
    (r'(pervit/deit-|convit/)[\w-]+_(in1k|in100|cifar100)', 'drop path', 0.1, 'deit_in1k'),
    (r'pervit/pervit-tiny', 'drop path', 0.0, 'pervit'),
    (r'pervit/pervit-small', 'drop path', 0.1, 'pervit'),
    (r'pervit/pervit-medium', 'drop path', 0.2, 'pervit'),
    (GAB_VIT_IN1K, 'drop path', 0.1, 'chosen'),
    (r'gab/(gab)?swin-', 'drop path', 0.3, 'swin_in1k'),
    # Of the last of 12 blocks: RVT's code gives block i, from 0, a rate of 0.1 * i / 12.
    (r'vars/rvt-', 'drop path', 0.1 * 11 / 12, 'vars'),
    (TRANSNEXT_IN1K, 'position bias', ('extrapolate', 224), 'transnext'),
    (r'transnext/transnext-micro-aaaa_', 'position bias', ('extrapolate', 256), 'transnext'),
    (r'vars/rvt-\w+-vars-s?d_', 'steps', 5, 'vars'),
    (IN1K, 'weights', None, 'deit_in1k'),
    (r'transnext/transnext-small_\w+-384px', 'weights', TRANSNEXT_WEIGHTS.format('small'), 'transnext'),
    (r'transnext/transnext-base_\w+-384px', 'weights', TRANSNEXT_WEIGHTS.format('base'), 'transnext'),
    # Small data sets: GAB's, and PACS, of whose training VARS says nothing.
    (SMALL_DATA, 'images per GPU', 64, 'gab'),
    (SMALL_DATA, 'base batch size', 64, 'gab'),
    (SMALL_DATA, 'optimizer', dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=5e-4), 'gab'),
    (SMALL_DATA, 'no weight decay', {'gaussian'}, 'gab'),
    (SMALL_DATA, 'loop', dict(epochs=200, validation=1), 'gab'),
    (SMALL_DATA, 'schedule', [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=200)], 'gab'),
    (SMALL_DATA, 'best checkpoint', 'accuracy/top1', 'gab'),
    (SMALL_DATA, 'averaged weights', None, 'gab'),
    (SMALL_DATA, 'repeated augmentation', 1, 'gab'),
    (SMALL_DATA, 'training images', ROTATED_CROPS, 'gab'),
    (SMALL_DATA, 'test images', centre_crop(256, 224, 'bilinear'), 'gab'),
    (SMALL_DATA, 'mixed images', [], 'gab'),
    (SMALL_DATA, 'batch norm over all GPUs', False, 'gab'),
    *(
        (f'vars/.*-{name.replace("_", "-")}_1xb64_', 'weights', f'checkpoints/vars_rvt_tiny_{name}.pth', 'vars')
        for name in ('performer', 'vars_s', 'vars_d', 'vars_sd')
    ),
    (SMALL_DATA, 'drop path', 0.0, 'gab'),
    (r'transnext/(pvt-|transnext-tiny-without-position-bias_)', 'position bias', None, 'transnext'),
    (r'transnext/transnext-tiny-relative-position-bias_', 'position bias', ('interpolate', 224), 'transnext'),
    *((rf'vars/rvt-tiny-vars-d-{steps}-steps_', 'steps', steps, 'vars_paper') for steps in (1, 7)),
    (r'transnext/pvt-', 'drop path', 0.15, 'chosen'),
    (r'transnext/pvt-v2-b1', 'drop path', 0.1, 'chosen'),
    (r'gab/[\w-]+_1xb64_', 'position bias drawn anew', True, 'gab'),
    *(
        (SMALL_DATA + name, 'head', dict(classes=classes, label_smoothing=None), 'gab')
        for name, classes in dict(pet=37, caltech101=102, cars=196, dogs=120, pacs=7).items()
    ),
    *(
        (rf'gab/[\w-]+-{arch}_1xb64_', 'weights', f'{TIMM}/vit_relpos_{arch}_patch16_224-sw-{digest}.pth', 'timm')
        for arch, digest in dict(small='ec2778b4', medium='11c174af', base='49049aed').items()
    ),
]
