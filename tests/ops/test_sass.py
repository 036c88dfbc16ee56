"""benchmarks/sass.py, which counts the instructions of compiled kernels."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.needs import needs

BENCHMARKS = Path(__file__).parents[2] / 'benchmarks'

# As cuobjdump prints them, with fewer instructions: a loop of five instructions, with another of three in it, and
# what is rare behind the end.
DUMP = """
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN10bioattn_mm12_GLOBAL__N__18pooled_bias_kernelILi3EN3c104HalfEEEvi:
  REG:42 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:724 TEXTURE:0 SURFACE:0 SAMPLER:0
	code for sm_90
		Function : _ZN10bioattn_mm12_GLOBAL__N__18pooled_bias_kernelILi3EN3c104HalfEEEvi
	.headerflags	@"EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                     /* 0x00000a00ff017b82 */
                                                                              /* 0x000e300000000800 */
        /*0010*/                   STL [R1], R2 ;                             /* 0x0000000201007387 */
        /*0020*/              @P0  EXIT ;                                     /* 0x000000000000094d */
        /*0030*/                   IMAD R2, R3, R4, RZ ;                      /* 0x0000000403027224 */
        /*0040*/                   HMMA.16816.F32 R4, R8, R12, R4 ;           /* 0x0000000c0804723c */
        /*0050*/                   MUFU.EX2 R4, R4 ;                          /* 0x0000000400047308 */
        /*0060*/             @!P1  BRA 0x40 ;                                 /* 0xfffffffc00f49947 */
        /*0070*/             @!P2  BRA 0x30 ;                                 /* 0xfffffffc00f49947 */
        /*0080*/                   LDL R2, [R1] ;                             /* 0x0000000001027983 */
        /*0090*/                   EXIT ;                                     /* 0x000000000000794d */
        /*00a0*/                   SHFL.BFLY PT, R4, R5, 0x1, 0x1f ;          /* 0x0c201f0005047f89 */
        /*00b0*/                   BRA 0x80 ;                                 /* 0xfffffffc00f47947 */
		...
"""


@pytest.fixture(scope='module')
def sass() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))  # of measure.py
    try:
        spec = importlib.util.spec_from_file_location('benchmark_sass', BENCHMARKS / 'sass.py')
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_what_is_counted(sass: ModuleType) -> None:
    (kernel,) = sass.parse(DUMP)
    assert kernel.name == 'pooled_bias_kernel<3, float16>'
    assert (kernel.registers, kernel.spills, len(kernel.body)) == (42, 2, 10)
    outer, inner = kernel.main_loops
    assert [len(outer), len(inner)] == [5, 3]
    assert sass.products(outer) == 1
    # 5 outside, and in each of 10 rounds 2 besides 4 rounds of 3.
    assert kernel.executed((10, 4)) == 5 + 10 * (2 + 4 * 3)
    with pytest.raises(ValueError, match='should have 1 main loops, has 2'):
        kernel.executed((10,))


def test_launches_of_a_stage(sass: ModuleType) -> None:
    launches = sass.launches(512, 512, stage=1, batch=2, dtype='float16')
    forward = launches['forward_kernel<3, 3, float16>']
    # 128 x 128 queries in warps of 16, of 3 heads and 2 images, and 256 pooled keys, 64 at a time.
    assert forward.blocks * sass.WARPS_OF_BLOCK == 128 * 128 // 16 * 3 * 2
    assert forward.rounds == (4,)
    assert forward.shared_bytes == 2 * 2 * 64 * 24 * 2
    assert sass.launches(512, 512, stage=1, batch=2, dtype='float32')['forward_kernel<3, 3, float32>'].rounds == (8,)
    # Each of the pairs of a query row and a pooled row once, in 8 times 16 columns for each head.
    bias = launches['pooled_bias_kernel<3, float16>']
    assert bias.blocks * sass.WARPS_OF_BLOCK * bias.rounds[0] == pytest.approx(128 * 16 * 8 * 3)


def test_floors(sass: ModuleType) -> None:
    gpu = sass.Gpu(capability=90, multiprocessors=100, gigahertz=2, gigabytes_a_second=1000)
    assert sass.floors(gpu, 8e6, 5_000_000) == ('8.00 M', '10.0 us', '5.0 us')


def test_without_the_toolkit(sass: ModuleType) -> None:
    with pytest.raises(FileNotFoundError, match='there is no nvcc-of-nobody on PATH, in CUDA_HOME or in Triton'):
        sass.find_tool('nvcc-of-nobody')


@needs('nvcc')
def test_a_compiled_kernel(sass: ModuleType, tmp_path: Path) -> None:
    source, cubin = tmp_path / 'toy.cu', tmp_path / 'toy.cubin'
    source.write_text("""
        template <typename T>
        __global__ void toy_kernel(T* data, int rounds) {
          T sum = 0;
        #pragma unroll 1
          for (int i = 0; i < rounds; ++i) sum += __shfl_xor_sync(0xffffffffu, data[i * 32 + threadIdx.x], 1);
          data[threadIdx.x] = sum;
        }
        template __global__ void toy_kernel<float>(float*, int);
    """)
    subprocess.run(['nvcc', '-cubin', '-arch=sm_80', '-o', cubin, source], check=True)
    dump = subprocess.run([sass.find_tool('cuobjdump'), '-res-usage', '-sass', cubin], capture_output=True, text=True)
    (kernel,) = sass.parse(dump.stdout)
    assert kernel.name == 'toy_kernel<float32>'
    assert kernel.registers > 0 and kernel.spills == 0
    (loop,) = kernel.main_loops
    assert sum(instruction.opcode.startswith('SHFL') for instruction in loop) == 1
    assert kernel.executed((7,)) == len(kernel.body) + 6 * len(loop)
