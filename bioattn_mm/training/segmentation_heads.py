"""mmseg's heads with a loss that never has the logits of all pixels at once.

mmseg resizes the logits to the labels' size, for 150 classes and eight crops of 512 x 512 pixels 1.3 GB in float32.
Cross entropy and its gradient make as much again, several times, and the accuracy ranks the classes of each pixel.
Here a part of an image at a time is resized and compared, and adds its gradient to that of the small logits.
"""

import torch
import torch.nn.functional as F
from mmseg.models.decode_heads import FCNHead as MMSegFCNHead
from mmseg.models.decode_heads import UPerHead as MMSegUPerHead
from mmseg.models.losses import CrossEntropyLoss
from mmseg.utils import SampleList
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ..ops.arguments import without_autocast
from ..registry import MODELS
from ..systems.common.resizing import linear_positions, linear_weights

# Logits of a part: what fits into the cache of a processor, and what keeps a GPU busy.
ON_CPU, ON_GPU = 2**19, 2**26


class LossInParts:
    """For heads of mmseg: cross entropy in parts. Other losses, and those with a sampler, are computed by mmseg."""

    def loss_by_feat(self, seg_logits: Tensor, batch_data_samples: SampleList) -> dict[str, Tensor]:
        """Loss, and accuracy in percent, of logits (N, classes, h, w) and the samples' labels, (1, H, W) each."""
        loss = self.loss_decode
        is_plain = (
            type(loss) is CrossEntropyLoss and loss.reduction == 'mean' and not (loss.use_sigmoid or loss.use_mask)
        )
        if not is_plain or self.sampler is not None or torch.compiler.is_compiling():
            return super().loss_by_feat(seg_logits, batch_data_samples)
        labels = self._stack_batch_gt(batch_data_samples).squeeze(1)
        counted = labels != self.ignore_index
        labels = labels.where(counted, 0)
        # The weight of each pixel: mmseg divides the sum of the losses by the sum of the weights, or by all pixels.
        weights = counted.float()
        if loss.class_weight is not None:
            weights *= torch.tensor(loss.class_weight, device=labels.device)[labels]
        is_mean = loss.avg_non_ignore or loss.class_weight is not None
        eps = torch.finfo(torch.float32).eps
        weights *= loss.loss_weight / ((weights.sum() if is_mean else weights.numel()) + eps)
        value, correct = _InParts.apply(seg_logits, labels, weights, self.align_corners)
        accuracy = 100 * ((correct & counted).sum() + eps) / (counted.sum() + eps)
        return {loss.loss_name: value, 'acc_seg': accuracy[None]}


class _InParts(torch.autograd.Function):
    """The weighted sum of the cross entropy of all pixels, and the pixels whose label has the largest logit."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, labels: Tensor, weights: Tensor, align_corners: bool
    ) -> tuple[Tensor, Tensor]:
        height, width = labels.shape[1:]
        step = max(1, (ON_GPU if logits.is_cuda else ON_CPU) // (logits.shape[1] * width))
        precise = torch.promote_types(logits.dtype, torch.float32)
        weights = weights.to(precise)
        firsts, shares = _shares_of_rows(logits.shape[2], height, align_corners)
        shares = shares.to(logits.device, precise, non_blocking=True)  # the processor does not wait for this copy
        # Classes last: what is resized and compared together is together in memory.
        logits_last = logits.permute(0, 2, 3, 1).contiguous()
        trains = ctx.needs_input_grad[0]
        gradient = torch.zeros_like(logits_last, dtype=precise) if trains else None
        value, correct = logits.new_zeros((), dtype=precise), torch.empty_like(labels, dtype=torch.bool)
        for top in range(0, height, step):
            rows = slice(top, min(top + step, height))
            source = slice(firsts[rows.start], firsts[rows.stop - 1] + 2)
            of_rows = shares[rows, source]
            for image in range(len(logits)):
                part = logits_last[image, source].detach().to(precise)
                with torch.set_grad_enabled(trains), without_autocast(part):
                    part.requires_grad_(trains)
                    near = (of_rows @ part.flatten(1)).view(-1, *part.shape[1:])[None].permute(0, 3, 1, 2)
                    resized = F.interpolate(near, (len(of_rows), width), mode='bilinear', align_corners=align_corners)
                    resized = resized.permute(0, 2, 3, 1).flatten(0, 2)  # (pixels, classes)
                scores = resized.detach()
                label, weight = labels[image, rows].reshape(-1, 1), weights[image, rows].reshape(-1, 1)
                largest, of_label = scores.amax(1, keepdim=True), scores.gather(1, label)
                correct[image, rows] = (of_label == largest).view(-1, width)
                softmax = (scores - largest).exp_()
                total = softmax.sum(1, keepdim=True)
                value += ((total.log() + largest - of_label) * weight).sum()
                if trains:
                    softmax.mul_(weight / total).scatter_add_(1, label, -weight)
                    gradient[image, source] += torch.autograd.grad(resized, part, softmax)[0]
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        ctx.mark_non_differentiable(correct)
        return value, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, of_value: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        # Scaled before it is rounded, which the scale of half precision is for.
        return (ctx.saved_tensors[0] * of_value).to(ctx.dtype).permute(0, 3, 1, 2), None, None, None


def _shares_of_rows(rows: int, resized: int, align_corners: bool) -> tuple[list[int], Tensor]:
    """The first of the two rows that each row of the resized is between, and the share of each row in it."""
    if align_corners:
        positions = torch.arange(resized, dtype=torch.float64) * ((rows - 1) / max(1, resized - 1))
    else:
        positions = linear_positions(rows, resized)
    return positions.long().tolist(), linear_weights(positions, rows)


@MODELS.register_module()
class UPerHead(LossInParts, MMSegUPerHead):
    """mmseg's `UPerHead` with the same arguments, weights and gradients, whose loss takes less memory and time."""


@MODELS.register_module()
class FCNHead(LossInParts, MMSegFCNHead):
    """mmseg's `FCNHead` with the same arguments, weights and gradients, whose loss takes less memory and time."""
