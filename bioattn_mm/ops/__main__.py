"""`python -m bioattn_mm.ops`: what was built, and which backend each device takes."""

import torch

from .backends import HOW_TO_BUILD, LIBRARY, LIBRARY_IS_LOADED, available_backends


def main() -> None:
    print(f'compiled operators: {LIBRARY.name if LIBRARY_IS_LOADED else f"none; {HOW_TO_BUILD}"}')
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}')
    for device in ['cpu', *(['cuda'] if torch.cuda.is_available() else [])]:
        print(f'{device}: {", ".join(available_backends(torch.device(device)))} (the first is taken)')


if __name__ == '__main__':
    main()
