#include "memory.h"

#include "fibers.h"

#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace bioattn_mm {
alignas(16) char shared_memory[2 * cuda_on_cpu::kSharedBytes];  // twice what a kernel may use, to see accesses beyond
}

namespace cuda_on_cpu {
namespace {

using bioattn_mm::shared_memory;

size_t shared_bytes;

// Who wrote a byte of shared memory last, and who has read it since. An interval of the past says as much as none.
struct Byte {
  int writer;
  bool arriving;  // the writer copies it, and has not waited yet
  Time written;
  const void* written_at;
  // For each warp the lanes that have read it, since its latest step.
  struct {
    Time read;
    uint32_t lanes;
  } readers[kMaxWarps];
};

std::vector<Byte> bytes(kSharedBytes);

// Sixteen bytes on their way to shared memory.
struct Copy {
  uint32_t address;
  char data[16];
  const void* issued_at;
};

std::vector<std::vector<Copy>> copies(kMaxThreads);  // of each thread

// "file.cu:12", with the lines that inlined this one behind it.
std::string line_of(const void* address) {
  Dl_info info;
  if (!dladdr(address, &info)) return "?";
  char number[32];
  // The address is the one that a call returns to.
  snprintf(
      number, sizeof number, "0x%tx", static_cast<const char*>(address) - 1 - static_cast<char*>(info.dli_fbase));
  const std::string command = std::string("addr2line -is -e '") + info.dli_fname + "' " + number;
  std::string lines;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char line[256];
    while (fgets(line, sizeof line, pipe)) (lines += lines.empty() ? "" : " < ").append(line, strcspn(line, "\n"));
    pclose(pipe);
  }
  return lines;
}

[[noreturn]] void fail_at(const std::string& what, size_t offset, const void* address) {
  const std::string thread = "thread " + std::to_string(current_thread()->number);
  fail(thread + " " + what + " byte " + std::to_string(offset) + " of shared memory, " + line_of(address));
}

// Whether nothing orders an access of a thread of a warp at some time and one of the current thread.
bool unordered(int warp, Time time) {
  const Thread& me = *current_thread();
  return time.interval == me.time.interval && (warp != me.warp || time.warp_step == me.time.warp_step);
}

void access(const void* begin, size_t size, bool write, const void* address) {
  const size_t offset = static_cast<const char*>(begin) - shared_memory;
  if (offset >= sizeof shared_memory || !current_thread()) return;
  const Thread& me = *current_thread();
  const uint32_t lane = 1u << me.number % kWarpSize;
  if (offset + size > shared_bytes)
    fail_at(write ? "writes beyond the end, at" : "reads beyond the end, at", offset, address);
  for (size_t i = offset; i < offset + size; ++i) {
    Byte& byte = bytes[i];
    if (byte.arriving)
      fail_at(
          std::string(write ? "writes" : "reads") + " what thread " + std::to_string(byte.writer) +
              " copies and has not waited for,",
          i, address);
    if (byte.writer != me.number && unordered(byte.writer / kWarpSize, byte.written))
      fail_at(
          std::string("races: it ") + (write ? "writes" : "reads") + " what thread " + std::to_string(byte.writer) +
              " writes at " + line_of(byte.written_at) + " without a barrier in between,",
          i, address);
    if (write) {
      for (int warp = 0; warp < kMaxWarps; ++warp) {
        const auto& readers = byte.readers[warp];
        const uint32_t others = warp == me.warp ? readers.lanes & ~lane : readers.lanes;
        if (others && unordered(warp, readers.read))
          fail_at(
              "races: it writes what a thread of warp " + std::to_string(warp) +
                  " reads without a barrier in between,",
              i, address);
      }
      byte.writer = me.number, byte.written = me.time, byte.written_at = address;
    } else {
      if (byte.written.interval < first_interval()) fail_at("reads uninitialised", i, address);
      auto& readers = byte.readers[me.warp];
      const bool same_step = readers.read.interval == me.time.interval && readers.read.warp_step == me.time.warp_step;
      readers = {me.time, same_step ? readers.lanes | lane : lane};
    }
  }
}

struct sigaction default_action;

void on_segmentation_fault(int, siginfo_t*, void* context) {
  if (const Thread* thread = current_thread()) {
#ifdef REG_RIP
    const auto* const instruction =
        reinterpret_cast<const char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    const std::string line = ", " + line_of(instruction + 1);
#else
    const std::string line;
#endif
    fail("thread " + std::to_string(thread->number) + " reads or writes outside of a tensor" + line);
  }
  sigaction(SIGSEGV, &default_action, nullptr);
}

struct GuardedAllocator : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const size_t page = sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page, all = (pages + 2) * page;
    char* const begin = static_cast<char*>(mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(begin + page, pages * page, PROT_READ | PROT_WRITE);
    memset(begin + page, 0xff, pages * page);
    // Allocations of CUDA are aligned; 16 bytes are what the kernels may rely on.
    char* const data = begin + page + (at_the_end ? (pages * page - size) / 16 * 16 : 0);
    return {data, new Mapping{begin, all}, &free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* target, const void* source, size_t size) const override { memcpy(target, source, size); }

  struct Mapping {
    char* begin;
    size_t size;
  };
  static void free(void* mapping) {
    auto* m = static_cast<Mapping*>(mapping);
    munmap(m->begin, m->size);
    delete m;
  }

  bool at_the_end = true;
};

GuardedAllocator guarded;

}  // namespace

void set_shared_bytes(size_t bytes) { shared_bytes = bytes; }

void poison_shared_memory() {
  memset(shared_memory, 0xff, sizeof shared_memory);
  for (auto& of_thread : copies) of_thread.clear();
  for (Byte& byte : bytes) byte.arriving = false;
}

uint32_t shared_address(const void* pointer) { return static_cast<const char*>(pointer) - shared_memory; }

void read_shared(void* target, uint32_t address, size_t size) {
  const void* const place = __builtin_return_address(0);
  if (address % size) fail_at("does not read a multiple of " + std::to_string(size) + ",", address, place);
  access(shared_memory + address, size, /*write=*/false, place);
  memcpy(target, shared_memory + address, size);
}

void copy_later(uint32_t address, const void* source, size_t size, size_t from_source) {
  const void* const place = __builtin_return_address(0);
  Copy copy = {address, {}, place};
  if (size != sizeof copy.data || address % size || (from_source && reinterpret_cast<uintptr_t>(source) % size))
    fail_at("copies other than sixteen aligned bytes to", address, place);
  memcpy(copy.data, source, from_source);
  access(shared_memory + address, size, /*write=*/true, place);
  memset(shared_memory + address, 0xff, size);
  for (size_t i = address; i < address + size; ++i) bytes[i].arriving = true;
  copies[current_thread()->number].push_back(copy);
}

void finish_copies() {
  auto& own = copies[current_thread()->number];
  for (const Copy& copy : own) {
    for (size_t i = copy.address; i < copy.address + sizeof copy.data; ++i) bytes[i].arriving = false;
    access(shared_memory + copy.address, sizeof copy.data, /*write=*/true, copy.issued_at);
    memcpy(shared_memory + copy.address, copy.data, sizeof copy.data);
  }
  own.clear();
}

SegmentationFaults::SegmentationFaults() {
  struct sigaction action = {};
  action.sa_sigaction = on_segmentation_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &default_action);
}

SegmentationFaults::~SegmentationFaults() { sigaction(SIGSEGV, &default_action, nullptr); }

GuardPages::GuardPages(bool at_the_end) : previous_(c10::GetCPUAllocator()) {
  guarded.at_the_end = at_the_end;
  c10::SetCPUAllocator(&guarded, /*priority=*/1);
}

GuardPages::~GuardPages() { c10::SetCPUAllocator(previous_, /*priority=*/1); }

}  // namespace cuda_on_cpu

// What -fsanitize=thread calls before an access.
#define BIOATTN_FUNCTION(name, bytes, write) \
  void __tsan_##name##bytes(void* p) { cuda_on_cpu::access(p, bytes, write, __builtin_return_address(0)); }
#define BIOATTN_ACCESS(bytes)                    \
  BIOATTN_FUNCTION(read, bytes, false)           \
  BIOATTN_FUNCTION(write, bytes, true)           \
  BIOATTN_FUNCTION(unaligned_read, bytes, false) \
  BIOATTN_FUNCTION(unaligned_write, bytes, true)

// The kernels have no atomic operations; the host code around them, reference counts.
constexpr int kOrder = __ATOMIC_SEQ_CST;
#define BIOATTN_ATOMIC(bits, T)                                                                           \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, kOrder); }           \
  void __tsan_atomic##bits##_store(volatile T* p, T x, int) { __atomic_store_n(p, x, kOrder); }           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T x, int) { return __atomic_exchange_n(p, x, kOrder); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T x, int) { return __atomic_fetch_add(p, x, kOrder); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T x, int) { return __atomic_fetch_sub(p, x, kOrder); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T x, int, int) {          \
    return __atomic_compare_exchange_n(p, expected, x, false, kOrder, kOrder);                            \
  }                                                                                                       \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T x, int, int) {            \
    return __atomic_compare_exchange_n(p, expected, x, true, kOrder, kOrder);                             \
  }

extern "C" {
BIOATTN_ACCESS(1)
BIOATTN_ACCESS(2)
BIOATTN_ACCESS(4)
BIOATTN_ACCESS(8)
BIOATTN_ACCESS(16)
BIOATTN_ATOMIC(8, uint8_t)
BIOATTN_ATOMIC(32, uint32_t)
BIOATTN_ATOMIC(64, uint64_t)
void __tsan_read_range(void* p, size_t size) { cuda_on_cpu::access(p, size, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t size) { cuda_on_cpu::access(p, size, true, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// What -fsanitize=alignment calls: the first fields of its data are the place in the source.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1(SourceLocation* place, uintptr_t address) {
  if (!cuda_on_cpu::current_thread()) return;
  const std::string path(place->file);
  cuda_on_cpu::fail(
      "address " + std::to_string(address) + " is not aligned for the type that is accessed, " +
      path.substr(path.rfind('/') + 1) + ":" + std::to_string(place->line));
}
}
