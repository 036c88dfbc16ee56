// PTX instructions of the kernels. `asm volatile(...)` becomes a call of `ptx` when the source is compiled for the CPU
// (__init__.py): the text of the instruction, and its operands in the order of their numbers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cuda_on_cpu {

struct Operand {
  float* output;   // an accumulator, read and written; null for inputs
  uint32_t input;  // a register
};

inline Operand operand(float& accumulator) { return {&accumulator, 0}; }
inline Operand operand(uint32_t reg) { return {nullptr, reg}; }

void ptx(const char* text, std::initializer_list<Operand> operands);

// Names of the instructions that any kernel has executed.
std::vector<std::string> executed_instructions();

}  // namespace cuda_on_cpu
