"""Reading checkpoints: the authors' released files, files of this package, and what does not fit."""

import pickle
import re
from pathlib import Path

import torch
from mmengine.runner.checkpoint import CheckpointLoader
from torch import Tensor, nn

from .errors import InputError
from .files import whole_file
from .unpickling import HOLDS_CODE, code_refused, refused_class

# Names of the authors' released files -> names here, as regular expressions applied in order.
RELEASED_NAMES = {
    'TransNeXt': [
        (r'^patch_embed(\d)\.', lambda m: f'stages.{int(m[1]) - 1}.patch_embed.'),
        (r'^block(\d)\.(\d+)\.', lambda m: f'stages.{int(m[1]) - 1}.blocks.{m[2]}.'),
        (r'^norm(\d)\.', lambda m: f'stages.{int(m[1]) - 1}.norm.'),
        (r'\.attn\.(temperature|query_embedding)$', r'.attn.scale.\1'),
        (r'\.attn\.relative_pos_bias_local$', '.attn.window_bias'),
        (r'\.attn\.cpb_fc', '.attn.position_bias.fc'),
        (r'\.attn\.sr\.', '.attn.pool_proj.'),
        (r'\.attn\.norm\.', '.attn.pool_norm.'),
        (r'\.dwconv\.dwconv\.', '.dwconv.'),
    ],
    # The names of timm's files, too.
    'ConViT': [(r'^pos_embed$', 'pos_embed.weight')],
    # The names of the Swin authors; those of mmdet, mmseg and mmpretrain are the names here.
    'GABSwin': [
        (r'^layers\.', 'stages.'),
        (r'^patch_embed\.proj\.', 'patch_embed.projection.'),
        (r'\.attn\.(?!w_msa\.)', '.attn.w_msa.'),
        (r'\.mlp\.fc1\.', '.ffn.layers.0.0.'),
        (r'\.mlp\.fc2\.', '.ffn.layers.1.'),
    ],
    # timm's names are the names here.
    'GABViT': [],
    'PerViT': [
        (r'^conv_layers\.conv_layers\.', 'stem.'),
        (r'^conv_layers\.conv1x1\.', 'stem.4.'),
        (r'^rpe_proj\.', 'distance_embedding.proj.'),
        (r'\.conv\.proj\.', '.position_conv.'),
        (r'\.attn\.to_qkv\.', '.attn.qkv.'),
        (r'\.attn\.activation\.gn', '.attn.position.norm'),
        (r'\.attn\.activation\.', '.attn.position.'),
        (r'\.res_path\.', '.shortcut.'),
    ],
    # With VARS-S, `kernel`, `v` and `proj` belong to the block, with VARS-SD to its attention.
    'VARS': [
        (r'^patch_embed\.proj\.', 'stem.'),
        (r'^pools\.0\.conv\.', 'pool.'),
        (r'^(transformers\..*\.attn)\.kernel$', r'\1.static'),
        # Only RVT-Ti has a second stage, after 10 blocks.
        (r'^transformers\.(\d)\.blocks\.(\d+)\.', lambda m: f'blocks.{10 * int(m[1]) + int(m[2])}.'),
        (r'^(blocks\.\d+)\.(kernel|v|proj)\b', r'\1.attn.\2'),
        (r'^(blocks\.\d+)\.kernel2$', r'\1.attn.mix_kernel'),
        (r'\.norm1\.bn\.', '.attn.norm.'),
        (r'\.attn\.rand_matrix$', '.attn.features.projection'),
        (r'\.attn\.learned_k$', '.attn.gram_weight'),
        (r'\.attn\.learned_lam$', '.attn.sparsity_scale'),
        (r'\.attn\.learned_L$', '.attn.step_scale'),
    ],
}

# Values of the authors' released files -> values here, by the name in the file, a regular expression.
RELEASED_VALUES = {
    # The input channels of Swin's patch merging are (column, row, channel) of each 2 x 2 patches in the authors' code
    # and (channel, row, column) in OpenMMLab's.
    'GABSwin': {
        r'^layers\.\d\.downsample\.': lambda value: value.unflatten(-1, (2, 2, -1)).transpose(-1, -3).flatten(-3)
    },
}

# What an ImageNet checkpoint has and a backbone does not.
CLASSIFIER_PREFIXES = ('head.', 'head_dist.', 'fc.', 'fc_norm.')

# Where in a checkpoint file the weights may be, in this order; else the file is a bare state dict.
WEIGHTS_KEYS = ('state_dict', 'model', 'model_ema')


def read_checkpoint(path: str) -> object:
    """Read a checkpoint file or URL as it is, but for the code that a pickle may run (see `unpickling`).

    Raises:
        InputError: The file is missing, cannot be read, or holds a class that mmengine does not write.
    """
    is_remote = '://' in path
    if not is_remote and not Path(path).is_file():
        raise InputError(f'checkpoint not found: {path}')
    try:
        with code_refused():
            if is_remote:
                return CheckpointLoader.load_checkpoint(path, map_location='cpu', logger='silent')
            # None lets --trust-checkpoint decide.
            return torch.load(path, map_location='cpu', weights_only=None)
    except Exception as error:
        refused = refused_class(error)
        if refused:
            raise InputError(f'{path} {HOLDS_CODE.format(refused)}') from error
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if isinstance(error, (pickle.UnpicklingError, LookupError, ValueError, EOFError)):
            reason = ['it is not what torch.save writes']
        hint = '; download it by hand and name the file instead' if is_remote else ''
        raise InputError(f'cannot read the checkpoint {path}: {reason[0]}{hint}') from error


def find_weights_key(checkpoint: object) -> str | None:
    """The key of `WEIGHTS_KEYS` under which a checkpoint has its weights; None for a bare state dict."""
    keys = [key for key in WEIGHTS_KEYS if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict)]
    return keys[0] if keys else None


def weights_of(path: str, checkpoint: object) -> dict[str, Tensor]:
    """The weights of a checkpoint that was read from `path`, without the `module.` of a parallel wrapper.

    Raises:
        InputError: It holds no weights.
    """
    key = find_weights_key(checkpoint)
    checkpoint = checkpoint[key] if key else checkpoint
    if not isinstance(checkpoint, dict) or not any(isinstance(value, Tensor) for value in checkpoint.values()):
        raise InputError(
            f'{path} holds no weights: expected a state dict, bare or under "state_dict" or "model", '
            f'got {type(checkpoint).__name__}'
        )
    return {name.removeprefix('module.'): value for name, value in checkpoint.items() if isinstance(value, Tensor)}


def read_state_dict(path: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint file or URL, wherever in the file they are.

    Accepts a bare state dict, or one under `state_dict`, `model` or `model_ema` (in this order), with or without
    the `module.` of a parallel wrapper.

    Raises:
        InputError: The file is missing, is no checkpoint, or holds no weights.
    """
    return weights_of(path, read_checkpoint(path))


def write_checkpoint(checkpoint: dict, path: Path) -> None:
    """Write a file that is there whole or not at all."""
    with whole_file(path) as file:
        torch.save(checkpoint, file)


def rename_released(system: str, name: str) -> str:
    """Map a name of the authors' released file of `system` to the name here; names of this package stay."""
    for pattern, replacement in RELEASED_NAMES[system]:
        name = re.sub(pattern, replacement, name)
    return name


def match_backbone(
    system: str, state_dict: dict[str, Tensor], own: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Bring a backbone's weights into the names and shapes of this package.

    Args:
        system: Class name of the backbone.
        state_dict: The weights under the names of the authors' release or of this package.
        own: The backbone's own state dict.

    Returns:
        The weights that the backbone has, under its names, and the names of `state_dict` that it has not.
    """
    weights, unused = {}, []
    for name, value in state_dict.items():
        own_name = rename_released(system, name)
        for pattern, convert in RELEASED_VALUES.get(system, {}).items():
            if re.search(pattern, name):
                value = convert(value)
        if own_name in own:
            # The authors keep singleton axes in some parameters, (heads, 1, d) for (heads, d).
            same_values = value.squeeze().shape == own[own_name].squeeze().shape
            weights[own_name] = value.reshape(own[own_name].shape) if same_values else value
        else:
            unused.append(name)
    return weights, unused


def load_backbone(backbone: nn.Module, path: str, prefix: str = '') -> tuple[list[str], list[str]]:
    """Load a checkpoint into a backbone: the authors' ImageNet file, or any checkpoint of this package.

    Args:
        backbone: Receives the weights; its class name is the name of the system, and a file may lack its
            `optional_weights`, regular expressions.
        path: Checkpoint file or URL.
        prefix: Take only the entries under this prefix, such as 'backbone.' of a whole detector. A file whose
            entries are all under 'backbone.' or other parts of a model is recognised without it.

    Returns:
        The names of the file, as they stand there without `module.` and prefix, that were not used; and the names
        of the backbone that the file lacks, whose values stay.

    Raises:
        InputError: The file cannot be read, or its weights are of another system or variant.
    """
    state_dict = read_state_dict(path)
    if not prefix and any(name.startswith('backbone.') for name in state_dict):
        prefix = 'backbone.'
    if prefix:
        prefix = prefix.rstrip('.') + '.'
        state_dict = {n.removeprefix(prefix): v for n, v in state_dict.items() if n.startswith(prefix)}
        if not state_dict:
            raise InputError(f'{path} has no weights under the prefix {prefix!r}')

    own = backbone.state_dict()
    weights, unused = match_backbone(type(backbone).__name__, state_dict, own)
    kept = [
        name
        for name in own
        if name not in weights and any(re.search(pattern, name) for pattern in backbone.optional_weights)
    ]
    unknown = [name for name in unused if not name.startswith(CLASSIFIER_PREFIXES)]
    check_fit(path, weights, {name: value for name, value in own.items() if name not in kept}, unknown)
    backbone.load_state_dict(weights, strict=False)
    return unused, kept


def first_of(names: list[str]) -> str:
    """The first names of a list, for a message of one line."""
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def check_fit(
    path: str,
    weights: dict[str, Tensor],
    own: dict[str, Tensor],
    unknown: list[str] | None = None,
    strict: bool = False,
) -> None:
    """Raise an `InputError` that names the keys and shapes by which `weights` do not fit the model `own`.

    Args:
        path: The file, for the message.
        weights: Its weights.
        own: The state dict of the model.
        unknown: What the file has and the model does not; by default the names of `weights` that `own` lacks.
        strict: These alone are an error, too.
    """
    if unknown is None:
        unknown = [name for name in weights if name not in own]
    missing = [name for name in own if name not in weights]
    mismatched = [
        f'{name} (file {tuple(value.shape)}, model {tuple(own[name].shape)})'
        for name, value in weights.items()
        if name in own and value.shape != own[name].shape
    ]
    if missing or mismatched or (strict and unknown):
        problems = [
            f'{len(names)} {kind}: {first_of(names)}'
            for kind, names in (
                ('of another shape', mismatched),
                ('missing in the file', missing),
                ('unknown to the model', unknown),
            )
            if names
        ]
        raise InputError(f'{path} is not a checkpoint of this model; {"; ".join(problems)}')
