// PTX instructions of the kernels. `asm(...)` becomes a call of `ptx` when the source is compiled for the CPU
// (__init__.py): the text of the instruction, and its operands in the order of their numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace cuda_on_cpu {

struct Operand {
  void* output;    // a register of 32 bits that is written, and perhaps read; null for inputs
  uint64_t input;  // the bits of a register
};

template <typename Register>
Operand output(Register& reg) {
  static_assert(sizeof(Register) == 4);
  return {&reg, 0};
}

template <typename Register>
Operand input(const Register& reg) {
  Operand operand = {nullptr, 0};
  memcpy(&operand.input, &reg, sizeof reg);
  return operand;
}

void ptx(const char* text, std::initializer_list<Operand> operands);

// Names of the instructions that any kernel has executed.
std::vector<std::string> executed_instructions();

}  // namespace cuda_on_cpu
