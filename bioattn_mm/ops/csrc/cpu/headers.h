// The headers of other libraries that the kernels use. They are included before an instruction set is chosen: see
// isa.h.
#pragma once

#include "isa.h"

#include "../check.h"

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#ifdef __linux__
#include <sys/mman.h>
#endif
#if BIOATTN_X86
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
