"""Layers that are computed in parts, inside of kernels that compute more than the layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ..ops.whole_layers import has_hooks, is_eager, is_plain


def product_and_bias(linear: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a linear layer gives without its bias, and the bias, for a kernel that adds it.

    A GPU sums the gradient of a bias in a launch of its own, unless the kernel that adds the bias does it. Another
    layer in the place of `nn.Linear`, such as a quantised one, is called as it is: there is no bias to add then.
    """
    if not is_plain(linear, nn.Linear):
        return linear(x), None
    return F.linear(x, linear.weight), linear.bias


def weights_and_biases(x: Tensor, *layers: nn.Module) -> list[tuple[Tensor, Tensor]] | None:
    """Parameters of linear layers, and of convolutions of one token each, in the dtype of their input.

    Returns:
        A pair for each layer; None where layers are called: in a graph, with hooks, and of other types.
    """
    are_plain = all(type(layer) in (nn.Linear, nn.Conv2d) and layer.bias is not None for layer in layers)
    if not is_eager() or not are_plain or has_hooks(*layers):
        return None
    return [(layer.weight.flatten(1).to(x.dtype), layer.bias.to(x.dtype)) for layer in layers]


def products(x: Tensor, pairs: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, ...]:
    """`F.linear` of the same tokens with several weights and biases.

    Autograd adds up the gradients of the tokens after the products, in passes over all tokens; here each product adds
    to those before. So does the product for the gradient of a weight that other tokens are multiplied with later.

    Returns:
        The results, and then as many weights, which later products have to take for that.
    """
    weights, biases = zip(*pairs)
    return Products.apply(x, *weights, *biases)


class Products(torch.autograd.Function):
    """What `products` computes, of several weights and as many biases."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        number = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:number], weights_and_biases[number:]
        results = (F.linear(x, weight, bias) for weight, bias in zip(weights, biases))
        return *results, *(weight.view_as(weight) for weight in weights)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[: 1 + len(outputs) // 2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        needs_x, *needed = ctx.needs_input_grad
        tokens, of_x = x.flatten(0, -2), None
        gradients, of_weights = gradients[: len(weights)], list(gradients[len(weights) :])
        of_biases: list[Tensor | None] = [None] * len(weights)
        for place, (gradient, weight) in enumerate(zip(gradients, weights)):
            if gradient is None:
                continue
            gradient = gradient.flatten(0, -2)
            if needs_x:
                of_x = _plus_product(of_x, gradient, weight)
            if needed[place]:
                # A gradient of the weight that comes in belongs to nobody else: later products alone have its weight.
                of_weights[place] = _plus_product(of_weights[place], gradient.T, tokens)
            if needed[len(weights) + place]:
                of_biases[place] = gradient.sum(0)
        return None if of_x is None else of_x.view(x.shape), *of_weights, *of_biases


def _plus_product(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """The sum of a matrix, if there is one, and a product; in place, because the matrix would be copied first."""
    return left @ right if total is None else total.addmm_(left, right)
