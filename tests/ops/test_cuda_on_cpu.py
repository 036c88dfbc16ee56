"""The emulation of CUDA that the tests of the kernels rely on: it finds the faults that it says it finds."""

from pathlib import Path

import pytest
import torch

from tests.ops.cuda_on_cpu import HERE, CUDAOnCPU

RACE = r'reads what thread \d+ writes .* without a barrier'


def emulation_in(folder: Path, capability: int = 800) -> CUDAOnCPU:
    return CUDAOnCPU(f'faults_on_{capability}', folder, [HERE / 'faults.cu'], capability)


@pytest.mark.parametrize('kernel', ['without_fault', 'copy_to_others'])
def test_kernels_without_a_fault(emulation_folder: Path, kernel: str) -> None:
    emulation = emulation_in(emulation_folder)
    emulation.draw_order()
    assert emulation.operators.run(kernel).tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(
    ('fault', 'seed', 'message'),
    [
        ('read_before_the_barrier', 0, rf'{RACE}.*faults.cu:\d+|uninitialised'),
        ('read_after_the_barrier_of_the_warp', 0, f'{RACE}|uninitialised'),
        ('read_after_a_shuffle', 0, RACE),
        ('write_what_others_read', 0, r'writes what a thread of warp \d reads without a barrier|reads what'),
        ('write_twice', 0, r'writes what thread \d+ writes .* without a barrier in between'),
        ('read_what_nobody_wrote', 0, 'reads uninitialised byte'),
        ('write_beyond_shared_memory', 0, 'writes beyond the end, at byte 256 of shared memory'),
        ('write_behind_a_tensor', 0, r'reads or writes outside of a tensor, .*faults.cu:\d+'),
        ('write_before_a_tensor', 1, 'reads or writes outside of a tensor'),
        ('load_unaligned', 0, r'not aligned for the type that is accessed, faults.cu:\d+'),
        ('barrier_that_half_the_threads_reach', 0, '32 threads wait for others that never come'),
        ('unknown_instruction', 0, 'no emulation of the PTX instruction mma.sync.aligned.m8n8k4'),
        ('read_a_copy_before_the_wait', 0, 'reads what thread 0 copies and has not waited for'),
        ('read_a_copy_after_the_wait_of_another_thread', 0, 'reads what thread 0 copies and has not waited for'),
        ('read_a_copy_before_the_barrier', 0, f'{RACE}|uninitialised|waited'),
        ('copy_over_what_others_read', 0, r'writes what a thread of warp \d reads without a barrier|reads what'),
        ('copy_unaligned', 0, 'copies other than sixteen aligned bytes'),
        ('copy_from_behind_a_tensor', 0, 'reads or writes outside of a tensor'),
    ],
)
def test_a_fault(emulation_folder: Path, fault: str, seed: int, message: str) -> None:
    emulation = emulation_in(emulation_folder)
    emulation.operators.set_seed(seed)
    with pytest.raises(RuntimeError, match=message):
        emulation.operators.run(fault)
    # Nothing of the guard pages stays behind.
    assert torch.zeros(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ('capability', 'dtype', 'instruction'),
    [
        (800, torch.float32, 'mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32'),
        (800, torch.float16, 'mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32'),
        (800, torch.bfloat16, 'mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32'),
        (750, torch.float32, None),  # of Turing, whose tensor cores multiply float16 alone
        (750, torch.bfloat16, None),
        (750, torch.float16, 'mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32'),
    ],
)
def test_matrix_product_of_a_warp(
    capability: int, dtype: torch.dtype, instruction: str | None, emulation_folder: Path
) -> None:
    emulation = emulation_in(emulation_folder, capability)
    emulation.draw_order()
    a, b, c = torch.randn(16, 24).to(dtype), torch.randn(24, 8).to(dtype), torch.randn(16, 8)
    a[2, 3], a[5, 7] = float('nan'), -float('nan')
    product, want = emulation.operators.product(a, b, c), c.double() + a.double() @ b.double()
    torch.testing.assert_close(product.double(), want, rtol=0, atol=1e-5, equal_nan=True)
    executed = [name for name in emulation.operators.executed_instructions() if name.startswith('mma')]
    assert instruction in executed if instruction else not executed
