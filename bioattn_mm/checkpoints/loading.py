"""Loading weights into a backbone, from the authors' released files or files of this package."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import InputError
from .files import first_of, read_state_dict, weights_of

# Entries of an ImageNet checkpoint that belong to the classifier.
CLASSIFIER_PREFIXES = ('head.', 'head_dist.', 'fc.', 'fc_norm.')


@dataclass(frozen=True)
class Release:
    """How the files that a backbone's authors released differ from its own state dict.

    Attributes:
        names: Regular expressions and replacements, applied in order, that turn the names in the files into those
            here. Names of this package must pass unchanged.
        values: Functions that turn values of the files into those here, by a regular expression that matches the name
            in the file.
        optional: Regular expressions of parameters and buffers that a checkpoint may lack.
        head: Name of the classifier's last layer in the files.
        names_of_classifier: As `names`, and applied before them, where a file is loaded into a whole classifier: for
            parts of it that the backbones of dense models do not take.
    """

    names: Sequence[tuple[str, str | Callable[[re.Match], str]]] = ()
    values: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    optional: Sequence[str] = ()
    head: str = 'head'
    names_of_classifier: Sequence[tuple[str, str | Callable[[re.Match], str]]] = ()

    def rename(self, name: str) -> str:
        """Map a name of the authors' file to the name here; names of this package stay."""
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name


@dataclass
class Match:
    """How the entries of a file and the weights of a backbone fit.

    Attributes:
        weights: What the backbone has of the file, under its names.
        unused: Names in the file that the backbone does not have.
        kept: Names of the backbone's weights that the file lacks and that keep their values.
    """

    weights: dict[str, Tensor]
    unused: list[str]
    kept: list[str]

    def __str__(self) -> str:
        """For the log."""
        note = f'{len(self.weights)} entries used, '
        note += f'not used: {", ".join(self.unused)}' if self.unused else 'which are all of the file'
        if self.kept:
            note += f'; not in the file and left at their initial values: {", ".join(self.kept)}'
        return note


def match_backbone(
    release: Release, state_dict: dict[str, Tensor], own: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Bring weights, of the authors' release or of this package, into the names and shapes of a state dict `own`.

    Returns:
        The weights under the backbone's names, and the names of `state_dict` that the backbone does not have.
    """
    weights, unused = {}, []
    for name, value in state_dict.items():
        own_name = release.rename(name)
        for pattern, convert in release.values.items():
            if re.search(pattern, name):
                value = convert(value)
        if own_name in own:
            # Some released parameters have singleton axes, such as (heads, 1, d) for (heads, d).
            same_values = value.squeeze().shape == own[own_name].squeeze().shape
            weights[own_name] = value.reshape(own[own_name].shape) if same_values else value
        else:
            unused.append(name)
    return weights, unused


def load_backbone(backbone: nn.Module, path: str, prefix: str = '') -> Match:
    """Load a checkpoint into a backbone: the authors' ImageNet file, or any checkpoint of this package.

    Args:
        backbone: Receives the weights; its `release` says what the file may look like.
        path: Checkpoint file, URL, or `hf://OWNER/NAME/FILE` of a Hugging Face repository.
        prefix: Take only the entries with this prefix. The 'backbone.' of whole models is recognised.

    Returns:
        What was used and what not; entries without the prefix are counted, such as 'head.* (2 entries)'.

    Raises:
        InputError: The file cannot be read, or its weights are of another system or variant.
    """
    state_dict = read_state_dict(path)
    others = Counter()
    if not prefix and any(name.startswith('backbone.') for name in state_dict):
        prefix = 'backbone.'
    if prefix:
        prefix = prefix.rstrip('.') + '.'
        others.update(name.partition('.')[0] for name in state_dict if not name.startswith(prefix))
        state_dict = {n.removeprefix(prefix): v for n, v in state_dict.items() if n.startswith(prefix)}
        if not state_dict:
            raise InputError(f'{path} has no weights under the prefix {prefix!r}')

    match = fit_backbone(backbone, path, state_dict)
    backbone.load_state_dict(match.weights, strict=False)
    match.unused += [f'{part}.* ({number} entries)' for part, number in others.items()]
    return match


def fit_backbone(backbone: nn.Module, path: str, state_dict: dict[str, Tensor]) -> Match:
    """Match weights that were read from `path`, as `match_backbone` does, and make sure that nothing is missing."""
    own = backbone.state_dict()
    weights, unused = match_backbone(backbone.release, state_dict, own)
    first = f'{getattr(backbone, "first_conv", None)}.weight'  # backbones of other libraries do not name it
    if first in weights:
        weights[first] = convert_channels(path, weights[first], own[first].shape[1])
    optional = [name for name in own if any(re.search(pattern, name) for pattern in backbone.release.optional)]
    kept = [name for name in optional if name not in weights]
    unknown = [name for name in unused if not name.startswith(CLASSIFIER_PREFIXES)]
    check_fit(path, weights, {name: value for name, value in own.items() if name not in kept}, unknown)
    return Match(weights, unused, kept)


def convert_channels(path: str, weight: Tensor, in_channels: int) -> Tensor:
    """Weights of a first convolution, (out, channels, height, width), for images of `in_channels` channels.

    As timm converts them: those of three channels are summed for one, else repeated in turn and scaled by
    3 / in_channels. `path` is their file, for the message.
    """
    if weight.ndim != 4 or weight.shape[1] == in_channels:
        return weight
    if weight.shape[1] != 3:
        raise InputError(
            f'{path} is for images of {weight.shape[1]} channels and the model for {in_channels}: weights of 3 '
            f'channels alone are converted; set in_channels={weight.shape[1]}'
        )
    from timm.models import adapt_input_conv

    return adapt_input_conv(in_channels, weight)


def fit_classifier(backbone: nn.Module, path: str, checkpoint: dict) -> Match:
    """Match the authors' whole classifier and an mmpretrain `ImageClassifier` with a `LinearClsHead`.

    The backbone's `release` says where the file, whose `path` is for messages, has the rest of the classifier. The
    weights get the names of the `ImageClassifier`.
    """
    head, rest = {}, {}
    for name, value in weights_of(path, checkpoint).items():
        if name.startswith(f'{backbone.release.head}.'):
            head['head.fc.' + name.removeprefix(f'{backbone.release.head}.')] = value
            continue
        for pattern, replacement in backbone.release.names_of_classifier:
            name = re.sub(pattern, replacement, name)
        rest[name] = value
    match = fit_backbone(backbone, path, rest)
    if not head:
        raise InputError(
            f'{path} has a backbone and no classifier, whose name would be {backbone.release.head}: load it with '
            'init_cfg of the backbone'
        )
    if any(backbone.release.rename(name).startswith('fc_norm.') for name in match.unused):
        raise InputError(
            f'{path} is a classifier that normalises the mean of the tokens: set out_type of the backbone to '
            "'avg_featmap', out_indices to its last block, and the neck to None"
        )
    match.weights = {f'backbone.{name}': value for name, value in match.weights.items()} | head
    return match


def weights_for(
    model: nn.Module, path: str, weights: dict[str, Tensor], any_classes: bool = False
) -> dict[str, Tensor]:
    """Return weights that were read from `path` under the names of a whole model, which may be on the meta device.

    Those of the authors' classifiers change. `any_classes` accepts those of a model with other classes, without what
    goes by their number, and of images of three channels.
    """
    weights, own = dict(weights), model.state_dict()
    for hook in model._load_state_dict_pre_hooks.values():
        hook(weights, '', {}, True, [], [], [])
    if any_classes:
        convert_first_conv(model, path, weights)
        for name in other_classes(weights, own):
            del weights[name], own[name]
    check_fit(path, weights, own)
    return weights


def convert_first_conv(model: nn.Module, path: str, weights: dict[str, Tensor]) -> str | None:
    """Convert weights under a whole model's names in place by `convert_channels`, if its images have other channels.

    Returns:
        What was converted, for the log; None if they have the channels of the model, which may be on the meta device.
    """
    name = f'backbone.{getattr(getattr(model, "backbone", None), "first_conv", None)}.weight'
    if name not in weights:
        return None
    before, weights[name] = weights[name], convert_channels(path, weights[name], model.get_parameter(name).shape[1])
    if weights[name] is before:
        return None
    return f'{name} from {before.shape[1]} to {weights[name].shape[1]}'


def other_classes(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Names of the weights outside of the backbone that fit a model's state dict `own` but for their length."""
    shapes = {name: (value.shape, own[name].shape) for name, value in weights.items() if name in own}
    return [
        name
        for name, (shape, other) in shapes.items()
        if not name.startswith('backbone.') and len(shape) and shape != other and shape[1:] == other[1:]
    ]


def check_fit(
    path: str,
    weights: dict[str, Tensor],
    own: dict[str, Tensor],
    unknown: list[str] | None = None,
    strict: bool = False,
) -> None:
    """Raise an `InputError` that names the keys and shapes by which `weights` do not fit a model's state dict `own`.

    `unknown` is what the file has and the model does not, by default the names of `weights` that `own` lacks; with
    `strict` these alone are an error, too.
    """
    if unknown is None:
        unknown = [name for name in weights if name not in own]
    missing = [name for name in own if name not in weights]
    mismatched = [
        f'{name} (file {tuple(value.shape)}, model {tuple(own[name].shape)})'
        for name, value in weights.items()
        # A scalar may stand for one element, see `GaussianBias`.
        if name in own and value.shape != own[name].shape and not (value.ndim == 0 and own[name].shape == (1,))
    ]
    other_dtypes = [
        f'{name} (file {value.dtype}, model {own[name].dtype})'
        for name, value in weights.items()
        # The counters of batch norm are of no use to a model that has its momentum.
        if name in own and not name.endswith('num_batches_tracked') and not _same_numbers(value, own[name].dtype)
    ]
    if missing or mismatched or other_dtypes or (strict and unknown):
        problems = {
            'of another shape': mismatched,
            'of another dtype': other_dtypes,
            'missing in the file': missing,
            'unknown to the model': unknown,
        }
        text = '; '.join(f'{len(names)} {kind}: {first_of(names)}' for kind, names in problems.items() if names)
        raise InputError(f'{path} is not a checkpoint of this model; {text}')


def _same_numbers(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers stay what they are in a model's dtype, up to the rounding of floating point.

    Integers are no weights: they are numbers of a quantised model without their scale. The indices of a model whose
    state dict was cast as a whole are whole numbers in floating point.
    """
    if dtype.is_floating_point or dtype.is_complex or value.is_complex():
        return (value.is_floating_point(), value.is_complex()) == (dtype.is_floating_point, dtype.is_complex)
    return not value.is_floating_point() or value.is_meta or bool((value == value.round()).all())
