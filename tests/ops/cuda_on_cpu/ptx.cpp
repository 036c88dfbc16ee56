// mma.sync as the PTX ISA describes it ("Matrix fragments for mma.m16n8k8 / mma.m16n8k16"), not as the kernels use it.
//
// A 32-bit register holds `packed` neighbours of a row of A, or of a column of B: one tf32 number or two half-precision
// ones. Of A (16 x K), lane 4 * (row % 8) + (k / packed) % 4 holds the element (row, k), in its register
// (row >= 8) + 2 * (k / (4 * packed)). Of B (K x 8), lane 4 * column + (k / packed) % 4 holds the element (k, column),
// in its register k / (4 * packed). Of C and D (16 x 8), a lane holds rows lane / 4 and lane / 4 + 8 at columns
// 2 * (lane % 4) and the next.

#include "ptx.h"

#include "fibers.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>
#include <sstream>
#include <map>
#include <vector>

namespace cuda_on_cpu {
namespace {

// The numbers that a register holds.
void tf32(uint32_t word, float* numbers) {
  word &= 0xffffe000u;  // the tensor core does not read the last bits
  memcpy(numbers, &word, sizeof word);
}

template <typename T>
void half(uint32_t word, float* numbers) {
  numbers[0] = T(word & 0xffff, T::from_bits());
  numbers[1] = T(word >> 16, T::from_bits());
}

struct Kind {
  int k, packed;
  void (*unpack)(uint32_t word, float* numbers);
};

const std::map<std::string, Kind> kinds = {
    {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", {8, 1, tf32}},
    {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", {8, 2, half<c10::Half>}},
    {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", {8, 2, half<c10::BFloat16>}},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", {16, 2, half<c10::Half>}},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", {16, 2, half<c10::BFloat16>}},
};

struct Instruction {
  std::string name;
  Kind kind;
  std::vector<std::vector<int>> operands;  // of D, A, B and C: their numbers
  long executed = 0;
};

std::map<const char*, Instruction> instructions;  // by the address of their text

// Reads "name {%0, %1, ...}, {...}, {...}, {...};".
Instruction parse(const char* text) {
  Instruction result;
  std::istringstream stream(text);
  stream >> result.name;
  const auto found = kinds.find(result.name);
  if (found == kinds.end()) fail("there is no emulation of the PTX instruction " + result.name);
  result.kind = found->second;
  for (char c; stream >> c;) {
    int number;
    if (c == '{') result.operands.emplace_back();
    if (c == '%' && stream >> number && !result.operands.empty()) result.operands.back().push_back(number);
  }
  const size_t of_b = result.kind.k / (4 * result.kind.packed);
  const std::vector<size_t> wanted = {4, 2 * of_b, of_b, 4};
  bool right = result.operands.size() == wanted.size();
  for (size_t i = 0; right && i < wanted.size(); ++i) right = result.operands[i].size() == wanted[i];
  if (!right) fail(std::string("not the operands of the PTX instruction: ") + text);
  return result;
}

// A tensor core rounds its sums toward zero.
float toward_zero(double x) {
  const float nearest = static_cast<float>(x);
  return std::isfinite(nearest) && std::fabs(nearest) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}

}  // namespace

void ptx(const char* text, std::initializer_list<Operand> list) {
  auto found = instructions.find(text);
  if (found == instructions.end()) found = instructions.emplace(text, parse(text)).first;
  Instruction& instruction = found->second;
  ++instruction.executed;
  const Operand* const operands = list.begin();
  const auto [steps, packed, unpack] = instruction.kind;

  Slot mine;
  float* next = mine.numbers;
  for (const int matrix : {1, 2})
    for (const int i : instruction.operands[matrix]) unpack(operands[i].input, next), next += packed;
  const Slot* const slots = exchange(mine);

  const int numbers_of_a = packed * instruction.operands[1].size(), lane = current_thread()->number % kLanes;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    double sum = *operands[instruction.operands[3][i]].output;
    for (int k = 0; k < steps; ++k) {
      const int in_quad = k / packed % 4, part = k / (4 * packed);
      const Slot &of_a = slots[2 * (row % 8 * 4 + in_quad)], &of_b = slots[2 * (column * 4 + in_quad)];
      sum += static_cast<double>(of_a.numbers[((row >= 8) + 2 * part) * packed + k % packed]) *
             of_b.numbers[numbers_of_a + part * packed + k % packed];
    }
    *operands[instruction.operands[0][i]].output = toward_zero(sum);
  }
}

std::vector<std::string> executed_instructions() {
  std::vector<std::string> names;
  for (const auto& [text, instruction] : instructions)
    if (instruction.executed) names.push_back(instruction.name);
  return names;
}

}  // namespace cuda_on_cpu
