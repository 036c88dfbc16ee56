// This makes a library compiled on a new Linux run on an old one (manylinux_2_28). It comes before all other headers.
#pragma once

#include <cmath>

#ifdef __GLIBCXX__
// Streams become a part of this library: their default constructors are young members of C++'s.
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1
#endif

#if defined(__GLIBC__) && defined(__x86_64__)
// The first versions of functions that have newer ones.
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif
