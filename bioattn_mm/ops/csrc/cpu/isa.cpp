// Picks the kernels of an instruction set.
#include "headers.h"

#include <cstdlib>

namespace bioattn_mm {
namespace {

struct Capability {
  std::string name;
  CpuKernels kernels, for_bfloat16 = kernels;
};

#if BIOATTN_KNOWS_AMX
// Whether the processor has tile registers of bfloat16, and the system lets this process use them.
bool has_tiles() {
  constexpr unsigned kTilesOfBFloat16 = 1 << 22 | 1 << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTilesOfBFloat16) == kTilesOfBFloat16 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<Capability> capabilities_of_processor() {
  std::vector<Capability> all = {{"default", isa_default::make_kernels()}};
#if BIOATTN_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return all;
  all.push_back({"avx2", isa_avx2::make_kernels()});
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return all;
  all.push_back({"avx512", isa_avx512::make_kernels()});
  if (!__builtin_cpu_supports("avx512bf16")) return all;
  all.push_back({"avx512_bf16", isa_avx512::make_kernels(), isa_avx512_bf16::make_kernels()});
#if BIOATTN_KNOWS_AMX
  if (has_tiles()) all.push_back({"amx", isa_avx512::make_kernels(), isa_amx::make_kernels()});
#endif
#endif
  return all;
}

const std::vector<Capability>& capabilities() {
  static const std::vector<Capability> all = capabilities_of_processor();
  return all;
}

// The instruction set that PyTorch's variable names, or else the best of this processor.
const Capability* best_capability() {
  const char* variable = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string of_torch = variable ? variable : "";  // such as avx2
  for (const Capability& capability : capabilities())
    if (capability.name == of_torch && of_torch != "avx512") return &capability;
  return &capabilities().back();
}

const Capability*& in_use() {
  static const Capability* capability = best_capability();
  return capability;
}

}  // namespace

const CpuKernels& cpu_kernels(ScalarType dtype) {
  return dtype == kBFloat16 ? in_use()->for_bfloat16 : in_use()->kernels;
}

std::string cpu_capability() { return in_use()->name; }

std::vector<std::string> cpu_capabilities() {
  std::vector<std::string> names;
  for (const Capability& capability : capabilities()) names.push_back(capability.name);
  return names;
}

void set_cpu_capability(const std::string& name) {
  std::string names;
  for (const Capability& capability : capabilities()) {
    if (capability.name == name) return void(in_use() = &capability);
    names += (names.empty() ? "" : ", ") + capability.name;
  }
  check_value(false, "this processor does not run ", name, "; expected one of ", names);
}

}  // namespace bioattn_mm
