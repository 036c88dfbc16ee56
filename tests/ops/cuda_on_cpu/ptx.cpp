#include "ptx.h"

#include "fibers.h"
#include "memory.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdlib>
#include <map>

namespace cuda_on_cpu {
namespace {

struct Instruction {
  std::string name;
  std::vector<std::vector<int>> groups;  // of operands in braces: their numbers
  void (*run)(const Instruction& instruction, const Operand* operands);
  long executed = 0;
};

template <typename To, typename From>
To as(const From& bits) {
  To result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

uint32_t word(const Operand& operand) { return static_cast<uint32_t>(operand.input); }
float number(const Operand& operand) { return as<float>(word(operand)); }

// mma.sync as the PTX ISA describes it ("Matrix fragments for mma.m16n8k8 / mma.m16n8k16"), not as the kernels use
// it.
//
// A 32-bit register holds `packed` neighbours of a row of A, or of a column of B: one tf32 number or two
// half-precision ones. Of A (16 x K), lane 4 * (row % 8) + (k / packed) % 4 holds the element (row, k), in its
// register (row >= 8) + 2 * (k / (4 * packed)). Of B (K x 8), lane 4 * column + (k / packed) % 4 holds the element
// (k, column), in its register k / (4 * packed). Of C and D (16 x 8), a lane holds rows lane / 4 and lane / 4 + 8 at
// columns 2 * (lane % 4) and the next.

// The numbers that a register holds.
void tf32(uint32_t word, float* numbers) {
  numbers[0] = as<float>(word & 0xffffe000u);  // the tensor core does not read the last bits
}

template <typename T>
void half(uint32_t word, float* numbers) {
  numbers[0] = T(word & 0xffff, T::from_bits());
  numbers[1] = T(word >> 16, T::from_bits());
}

// A tensor core rounds its sums toward zero.
float toward_zero(double x) {
  const float nearest = static_cast<float>(x);
  return std::isfinite(nearest) && std::fabs(nearest) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}

template <int steps, int packed, void (*unpack)(uint32_t word, float* numbers)>
void mma(const Instruction& instruction, const Operand* operands) {
  const auto& groups = instruction.groups;  // D, A, B and C
  constexpr size_t of_b = steps / (4 * packed);
  const std::vector<size_t> wanted = {4, 2 * of_b, of_b, 4};
  bool right = groups.size() == wanted.size();
  for (size_t i = 0; right && i < wanted.size(); ++i) right = groups[i].size() == wanted[i];
  if (!right) fail("not the operands of the PTX instruction " + instruction.name);

  Slot mine;
  float* next = mine.numbers;
  for (const int matrix : {1, 2})
    for (const int i : groups[matrix]) unpack(word(operands[i]), next), next += packed;
  const Slot* const slots = exchange(mine);

  const int numbers_of_a = packed * groups[1].size(), lane = current_thread()->number % kWarpSize;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    double sum = *static_cast<float*>(operands[groups[3][i]].output);
    for (int k = 0; k < steps; ++k) {
      const int in_quad = k / packed % 4, part = k / (4 * packed);
      const Slot &of_a = slots[2 * (row % 8 * 4 + in_quad)], &of_b = slots[2 * (column * 4 + in_quad)];
      sum += static_cast<double>(of_a.numbers[((row >= 8) + 2 * part) * packed + k % packed]) *
             of_b.numbers[numbers_of_a + part * packed + k % packed];
    }
    *static_cast<float*>(operands[groups[0][i]].output) = toward_zero(sum);
  }
}

// ldmatrix of four matrices of 8 x 8 numbers of 16 bits: lane l has the address of row l % 8 of matrix l / 8. Of each
// matrix lane l gets the numbers (l / 4, 2 * (l % 4)) and the next in that row or, transposed, in that column.
template <bool transposed>
void ldmatrix(const Instruction& instruction, const Operand* operands) {
  Slot mine;
  read_shared(mine.numbers, word(operands[4]), 16);
  const Slot* const slots = exchange(mine);
  const int lane = current_thread()->number % kWarpSize;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t numbers[2];
    for (int k = 0; k < 2; ++k) {
      const int first = lane / 4, second = lane % 4 * 2 + k;
      const int row = transposed ? second : first, column = transposed ? first : second;
      memcpy(&numbers[k], reinterpret_cast<const char*>(slots[2 * (8 * matrix + row)].numbers) + 2 * column, 2);
    }
    memcpy(operands[matrix].output, numbers, sizeof numbers);
  }
}

void cp_async(const Instruction&, const Operand* operands) {
  copy_later(word(operands[0]), reinterpret_cast<const void*>(operands[1].input), 16, word(operands[2]));
}

void wait_all(const Instruction&, const Operand*) { finish_copies(); }

float without_subnormals(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// x with an error of up to `relative`, which one depends on the bits of x.
float perturbed(double x, double relative) {
  const uint32_t bits = as<uint32_t>(static_cast<float>(x)) * 2654435769u;
  return without_subnormals(static_cast<float>(x * (1 + relative * (bits / 2147483648.0 - 1))));
}

// Of zero, which subnormal numbers become, it is exactly one.
void ex2(const Instruction&, const Operand* operands) {
  const float x = without_subnormals(number(operands[1]));
  const float power = perturbed(std::exp2(static_cast<double>(x)), std::exp2(-22.5));
  *static_cast<float*>(operands[0].output) = x == 0 ? 1 : power;
}

void rcp(const Instruction&, const Operand* operands) {
  const float x = without_subnormals(number(operands[1]));
  *static_cast<float*>(operands[0].output) = perturbed(1.0 / x, std::exp2(-23.5));
}

// The first source becomes the upper half.
template <typename T>
void cvt(const Instruction&, const Operand* operands) {
  const uint32_t upper = T(number(operands[1])).x, lower = T(number(operands[2])).x;
  *static_cast<uint32_t*>(operands[0].output) = upper << 16 | lower;
}

const std::map<std::string, void (*)(const Instruction&, const Operand*)> emulations = {
    {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", mma<8, 1, tf32>},
    {"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", mma<8, 2, half<c10::Half>>},
    {"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", mma<8, 2, half<c10::BFloat16>>},
    {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", mma<16, 2, half<c10::Half>>},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma<16, 2, half<c10::BFloat16>>},
    {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", ldmatrix<false>},
    {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", ldmatrix<true>},
    {"cp.async.cg.shared.global", cp_async},
    {"cp.async.wait_all", wait_all},
    {"ex2.approx.ftz.f32", ex2},
    {"rcp.approx.ftz.f32", rcp},
    {"cvt.rn.f16x2.f32", cvt<c10::Half>},
    {"cvt.rn.bf16x2.f32", cvt<c10::BFloat16>},
};

std::map<const char*, Instruction> instructions;  // by the address of their text

// Reads "name {%0, %1, ...}, ..., [%5];". Without streams: where the compiler links the C++ library into this one, a
// second copy of it in the process, theirs fail.
Instruction parse(const std::string& text) {
  Instruction result;
  size_t place = text.find_first_of(" ;");
  result.name = text.substr(0, place);
  const auto found = emulations.find(result.name);
  if (found == emulations.end()) fail("there is no emulation of the PTX instruction " + result.name);
  result.run = found->second;
  bool in_group = false;
  while ((place = text.find_first_of("{}%", place)) != std::string::npos) {
    const char c = text[place++];
    if (c == '{') result.groups.emplace_back();
    if (c != '%')
      in_group = c == '{';
    else if (in_group)
      result.groups.back().push_back(std::atoi(text.c_str() + place));
  }
  return result;
}

}  // namespace

void ptx(const char* text, std::initializer_list<Operand> operands) {
  auto found = instructions.find(text);
  if (found == instructions.end()) found = instructions.emplace(text, parse(text)).first;
  Instruction& instruction = found->second;
  ++instruction.executed;
  instruction.run(instruction, operands.begin());
}

std::vector<std::string> executed_instructions() {
  std::vector<std::string> names;
  for (const auto& [text, instruction] : instructions)
    if (instruction.executed) names.push_back(instruction.name);
  return names;
}

}  // namespace cuda_on_cpu
