"""How much of an operator PyTorch computes at a time where a compiled one does not run."""

import torch

# On a GPU, elements of the largest tensor of a chunk: 256 MiB in float32, and up to six times that with the chunk's
# other tensors and, in training, their gradients. A launch takes microseconds there however little it does, so chunks
# are as large as memory allows.
NUMEL_ON_A_GPU = 2**26


def chunk_numel(device: torch.device, on_cpu: int) -> int:
    """Elements that the largest tensor of a chunk may have.

    Args:
        device: Where the tensors are. Every device but a CPU counts as a GPU.
        on_cpu: What a CPU takes: as much as stays in its cache.
    """
    return on_cpu if device.type == 'cpu' else NUMEL_ON_A_GPU
