// The symbols that the headers of a new C++ library use and the binary of an old one lacks: see old_linux.h.

#include <new>

#if defined(__linux__) && defined(__GLIBCXX__)  // other libraries have them in their headers
// Whether the process has one thread; 0 says that it may have more.
extern "C" char __libc_single_threaded;
char __libc_single_threaded = 0;

namespace std {
void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
#endif
