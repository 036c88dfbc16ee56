"""What the five papers have: the numbers of their equations, tables and figures, with what each is, in our words.

Numbers of supplements are those that the main texts name; `test_citations.py` holds code, configs and pages to these.
"""

from dataclasses import dataclass


@dataclass
class Paper:
    """The numbers of a paper.

    Attributes:
        equations: Last number of an equation, supplements included.
        tables: What each table is, by its number.
        figures: What each figure is, by its number.
        footnotes: Last number of a footnote.
    """

    equations: int
    tables: dict[int, str]
    figures: dict[int, str]
    footnotes: int = 0


PAPERS = dict(
    TransNeXt=Paper(
        equations=22,
        tables={
            1: 'classification and robustness',
            2: 'roadmap from PVT to TransNeXt, steps 0 to 8',
            3: 'variants',
            4: 'ImageNet recipe',
            5: 'other image sizes',
            6: 'position biases',
            7: 'designs of ConvGLU',
            8: 'window sizes',
            9: 'token mixers of the stages',
            10: 'speed of the CUDA implementation',
            11: 'throughput beside other models',
            12: 'Mask R-CNN',
            13: 'DINO',
            14: 'UperNet',
            15: 'Mask2Former',
        },
        figures={
            1: 'results at a glance',
            2: 'ways of aggregation, fields of stage 3',
            3: 'pixel-focused and aggregated attention',
            4: 'channel mixers',
            5: 'architecture',
            6: 'other image sizes',
            7: 'foveal and peripheral maps',
            8: 'receptive fields of four stages',
            9: 'receptive fields on other test sets',
        },
    ),
    ConViT=Paper(
        equations=8,
        tables={1: 'main results', 2: 'sample efficiency', 3: 'ablation'},
        figures={
            1: 'soft inductive biases',
            2: 'efficiency in samples and parameters',
            3: 'positional attention as convolution',
            4: 'architecture',
            5: 'nonlocality in training',
            6: 'gates in training',
            7: 'attention maps',
            8: 'locality strength and number of GPSA layers',
            10: 'supplement: nonlocality with distillation',
            15: 'supplement: attention maps in training',
        },
        footnotes=4,
    ),
    PerViT=Paper(
        equations=13,
        tables={
            1: 'components',
            2: 'position encodings in DeiT',
            3: 'components by size',
            4: 'sample efficiency',
            5: 'initial values and designs of Phi_p',
            6: 'main results',
        },
        figures={
            1: 'peripheral vision',
            2: 'what Phi_p can represent',
            3: 'architecture',
            4: 'learned Phi_p',
            5: 'regions',
            6: 'Phi_p and Phi_a of images',
            7: 'impact',
            8: 'nonlocality',
        },
        footnotes=9,
    ),
    GAB=Paper(
        equations=3,
        tables={1: 'Gaussian fits', 2: 'ImageNet', 3: 'small data sets', 4: 'detection and segmentation'},
        figures={
            1: 'fields by patch size',
            2: 'fields by model size',
            3: 'fields of ViTs and CNNs',
            4: 'fields with random position embeddings',
            5: 'learned bias of each patch',
            6: 'learned bias of each layer',
            7: 'how the bias is made',
        },
    ),
    VARS=Paper(
        equations=25,
        tables={
            1: 'data sets',
            2: 'robustness',
            3: 'domain generalisation',
            4: 'attention as segmentation',
            5: 'eye fixations',
        },
        figures={
            1: 'recurrent networks',
            2: 'overview',
            3: 'maps under corruption',
            4: 'maps and eye fixations',
            5: 'maps of each step',
            6: 'number of steps and sparsity',
            7: 'supplement: maps of each step',
            8: 'supplement: maps under corruption',
            9: 'supplement: maps and eye fixations',
        },
        footnotes=7,
    ),
)
