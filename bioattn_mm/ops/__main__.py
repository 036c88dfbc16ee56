"""`python -m bioattn_mm.ops`: print what was compiled, and the backends of each device."""

import torch

from .backends import CUDA_ARCHITECTURES, HOW_TO_BUILD, LIBRARY, WHY_NOT_LOADED, available_backends


def main() -> None:
    print(f'compiled operators: {f"none: {WHY_NOT_LOADED}; {HOW_TO_BUILD}" if WHY_NOT_LOADED else LIBRARY.name}')
    print(f'compiled for CUDA: {CUDA_ARCHITECTURES or f"no; {HOW_TO_BUILD}"}')
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}')
    for device in ('cpu', 'cuda'):
        backends = ', '.join(available_backends(torch.device(device)))
        absent = '; this machine has none' if device == 'cuda' and not torch.cuda.is_available() else ''
        print(f'{device}: {backends} (the first that supports the arguments){absent}')


if __name__ == '__main__':
    main()
