"""The Gaussians of a backbone."""

from torch import nn

from bioattn_mm.systems.gab import GaussianBias


def values_of_gaussians(backbone: nn.Module) -> list[tuple[float, float]]:
    """Amplitude and sigma of each layer."""
    layers = [module for module in backbone.modules() if isinstance(module, GaussianBias)]
    return [(layer.amplitude.item(), layer.sigma.item()) for layer in layers]
