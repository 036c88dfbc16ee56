// The headers of other libraries, included before an instruction set is chosen: see isa.h.
#pragma once

#include "isa.h"

#include "../check.h"

#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if BIOATTN_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <cstring>
#include <limits>
#include <numeric>
