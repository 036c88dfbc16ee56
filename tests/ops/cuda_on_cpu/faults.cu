// Kernels with one fault each, which the emulation has to find; and the matrix product of device.cuh by itself.

#include "control.h"
#include "cuda/device.cuh"
#include "cuda/launch.h"

#include <map>

namespace bioattn_mm {

inline float* numbers() {
  extern __shared__ __align__(16) char shared_memory[];
  return reinterpret_cast<float*>(shared_memory);
}

namespace {

constexpr int kThreads = 64;

__global__ void without_fault(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  __syncthreads();
  results[threadIdx.x] = numbers()[kThreads - 1 - threadIdx.x];
}

__global__ void read_before_the_barrier(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  results[threadIdx.x] = numbers()[threadIdx.x ^ 32];
}

// The barrier of a warp says nothing about the other warps.
__global__ void read_after_the_barrier_of_the_warp(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  __syncwarp();
  results[threadIdx.x] = numbers()[threadIdx.x ^ 1] + numbers()[threadIdx.x ^ 32];
}

// Neither does a shuffle about memory.
__global__ void read_after_a_shuffle(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  const float other = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  results[threadIdx.x] = numbers()[threadIdx.x ^ 1] + other;
}

__global__ void write_what_others_read(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  __syncthreads();
  results[threadIdx.x] = numbers()[threadIdx.x ^ 32];
  numbers()[threadIdx.x] = 0;
}

__global__ void write_twice(float* results) {
  numbers()[threadIdx.x % 32] = threadIdx.x;
  __syncthreads();
  results[threadIdx.x] = numbers()[threadIdx.x % 32];
}

__global__ void read_what_nobody_wrote(float* results) { results[threadIdx.x] = numbers()[threadIdx.x]; }

__global__ void write_beyond_shared_memory(float* results) {
  numbers()[threadIdx.x + 1] = 0;
  results[threadIdx.x] = 0;
}

__global__ void write_behind_a_tensor(float* results) { results[threadIdx.x + 1] = 0; }

__global__ void write_before_a_tensor(float* results) { results[static_cast<int>(threadIdx.x) - 1] = 0; }

__global__ void load_unaligned(float* results) {
  struct alignas(8) Pair {
    float x, y;
  };
  if (threadIdx.x == 0) results[0] = reinterpret_cast<const Pair*>(results + 1)->y;
}

__global__ void barrier_that_half_the_threads_reach(float* results) {
  if (threadIdx.x < 32) __syncthreads();
  results[threadIdx.x] = 0;
}

__global__ void unknown_instruction(float* results) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0};" : "+f"(results[0]) : "r"(threadIdx.x));
}

// Each thread copies what another one reads.
__global__ void copy_to_others(float* results) {
  results[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float* const four = numbers() + threadIdx.x * 4;
  if (threadIdx.x < kThreads / 4) copy_to_shared(four, results + threadIdx.x * 4, true);
  wait_for_copies();
  __syncthreads();
  results[threadIdx.x] = numbers()[kThreads - 1 - threadIdx.x];
}

__global__ void read_a_copy_before_the_wait(float* results) {
  if (threadIdx.x == 0) copy_to_shared(numbers(), results, true);
  __syncthreads();
  results[threadIdx.x] = numbers()[0];
  wait_for_copies();
}

// The wait is for the copies of this thread.
__global__ void read_a_copy_after_the_wait_of_another_thread(float* results) {
  if (threadIdx.x == 0) copy_to_shared(numbers(), results, true);
  if (threadIdx.x == 1) wait_for_copies();
  __syncthreads();
  results[threadIdx.x] = numbers()[0];
}

__global__ void read_a_copy_before_the_barrier(float* results) {
  if (threadIdx.x == 0) copy_to_shared(numbers(), results, true);
  wait_for_copies();
  results[threadIdx.x] = numbers()[0];
}

__global__ void copy_over_what_others_read(float* results) {
  numbers()[threadIdx.x] = threadIdx.x;
  __syncthreads();
  results[threadIdx.x] = numbers()[threadIdx.x ^ 32];
  if (threadIdx.x == 0) copy_to_shared(numbers() + 32, results, true);
  wait_for_copies();
}

__global__ void copy_unaligned(float* results) {
  if (threadIdx.x == 0) copy_to_shared(numbers(), results + 1, true);
  wait_for_copies();
}

__global__ void copy_from_behind_a_tensor(float* results) {
  if (threadIdx.x == 0) copy_to_shared(numbers(), results + kThreads, true);
  wait_for_copies();
}

at::Tensor run(const std::string& name) {
  static const std::map<std::string, void (*)(float*)> kernels = {
      {"without_fault", without_fault},
      {"read_before_the_barrier", read_before_the_barrier},
      {"read_after_the_barrier_of_the_warp", read_after_the_barrier_of_the_warp},
      {"read_after_a_shuffle", read_after_a_shuffle},
      {"write_what_others_read", write_what_others_read},
      {"write_twice", write_twice},
      {"read_what_nobody_wrote", read_what_nobody_wrote},
      {"write_beyond_shared_memory", write_beyond_shared_memory},
      {"write_behind_a_tensor", write_behind_a_tensor},
      {"write_before_a_tensor", write_before_a_tensor},
      {"load_unaligned", load_unaligned},
      {"barrier_that_half_the_threads_reach", barrier_that_half_the_threads_reach},
      {"unknown_instruction", unknown_instruction},
      {"copy_to_others", copy_to_others},
      {"read_a_copy_before_the_wait", read_a_copy_before_the_wait},
      {"read_a_copy_after_the_wait_of_another_thread", read_a_copy_after_the_wait_of_another_thread},
      {"read_a_copy_before_the_barrier", read_a_copy_before_the_barrier},
      {"copy_over_what_others_read", copy_over_what_others_read},
      {"copy_unaligned", copy_unaligned},
      {"copy_from_behind_a_tensor", copy_from_behind_a_tensor},
  };
  return cuda_on_cpu::guarded([&] {
    const Tensor results = empty({kThreads}, on_cpu(kFloat));
    launch(kernels.at(name), dim3(2), kThreads, kThreads * sizeof(float), results.mutable_data_ptr<float>());
    return cuda_on_cpu::of_operators(results);
  });
}

// c (16 x 8) += a (16 x 24) b (24 x 8), in the layout that device.cuh describes.
template <typename T>
__global__ void product_kernel(const T* a, const T* b, float* c) {
  constexpr int kSteps = 3;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  float sums[4];
  Pair<T> rows[kSteps][2];
  for (int k = 0; k < 4; ++k) sums[k] = c[(g + k / 2 * 8) * 8 + 2 * t + k % 2];
  for (int step = 0; step < kSteps; ++step)
    for (int r = 0; r < 2; ++r) rows[step][r] = load_pair(a + (g + 8 * r) * 8 * kSteps + 8 * step + 2 * t);
  Pair<T> columns[kSteps];
  for (int step = 0; step < kSteps; ++step) {
    const T* row = b + (8 * step + 2 * t) * 8 + g;
    columns[step] = {row[0], row[8]};
  }
  multiply_add(sums, rows[0], rows[1], columns[0], columns[1]);
  multiply_add(sums, rows[2], columns[2]);
  for (int k = 0; k < 4; ++k) c[(g + k / 2 * 8) * 8 + 2 * t + k % 2] = sums[k];
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return cuda_on_cpu::guarded([&] {
    const Tensor left = cuda_on_cpu::copy(a), right = cuda_on_cpu::copy(b), sums = cuda_on_cpu::copy(c);
    dispatch<float, c10::Half, c10::BFloat16>(left.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      launch(
          product_kernel<T>, dim3(1), kWarpSize, 0, left.const_data_ptr<T>(), right.const_data_ptr<T>(),
          sums.mutable_data_ptr<float>());
    });
    return cuda_on_cpu::of_operators(sums);
  });
}

}  // namespace
}  // namespace bioattn_mm

TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {
  library.def("run", bioattn_mm::run);
  library.def("product", bioattn_mm::product);
}
