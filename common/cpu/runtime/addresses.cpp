// Accesses out of bounds, in a build with the compiler's address sanitizer (variant "address").
//
// The compiler puts a check against libasan's shadow memory in front of every access of a kernel;
// where it fails, the code calls __asan_report_load4 or the like. The linker renames these calls
// (backend.py), so that they come here: the launch ends as with any other fault, with a message
// that names line, block, thread and array, and the process goes on. Of libasan itself only the
// shadow memory and the allocator are used. It must be in the process from its start (LD_PRELOAD).
#include "runtime.h"

#if defined(CUDACPU_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <unistd.h>
#include <unwind.h>

namespace cudacpu {

namespace {

// Values of a shadow byte, which stands for 8 bytes of memory: 0 all good, 1 to 7 so many are.
constexpr uint8_t kHeapFreed = 0xfd;
constexpr uint8_t kStackLeft = 0xf1;
constexpr uint8_t kStackMiddle = 0xf2;
constexpr uint8_t kStackRight = 0xf3;
constexpr uint8_t kStackAfterScope = 0xf8;
constexpr uintptr_t kGranule = 8;
constexpr uintptr_t kNullPage = 65536;  // nothing is mapped below

uint8_t shadow_of(uintptr_t address) {
  size_t scale, offset;
  __asan_get_shadow_mapping(&scale, &offset);
  return *reinterpret_cast<const uint8_t*>((address >> scale) + offset);
}

// A local variable as the compiler describes it in front of a function's locals.
struct Local {
  std::ptrdiff_t offset;  // of the address, from the start of the variable
  size_t size;
  std::string name;
};

// The local variable nearest to an address on a fiber's stack. In front of a function's locals lies
// a record: a magic number, then a text "<count> <offset> <size> <length of name> <name>[:line] …".
bool find_local(uintptr_t address, Local& best) {
  constexpr uintptr_t kFarthest = 64 * 1024;
  constexpr uintptr_t kMagic = 0x41b58ab3;
  uintptr_t base = address / kGranule * kGranule;
  uintptr_t lowest = base - kFarthest;
  while (shadow_of(base) != kStackLeft && base > lowest) base -= kGranule;
  while (shadow_of(base - kGranule) == kStackLeft) base -= kGranule;
  auto* record = reinterpret_cast<const uintptr_t*>(base);
  if (shadow_of(base) != kStackLeft || record[0] != kMagic) return false;
  auto* text = reinterpret_cast<const char*>(record[1]);
  char* next;
  auto count = strtoul(text, &next, 10);
  size_t nearest = ~size_t{0};
  for (unsigned long i = 0; i < count; ++i) {
    auto offset = strtoul(next, &next, 10), size = strtoul(next, &next, 10);
    auto length = strtoul(next, &next, 10);
    std::string name(next + 1, length);
    next += 1 + length;
    auto from_start = static_cast<std::ptrdiff_t>(address - (base + offset));
    size_t distance = static_cast<size_t>(
        from_start < 0 ? -from_start
                       : std::max<std::ptrdiff_t>(from_start - static_cast<long>(size) + 1, 0));
    if (distance >= nearest) continue;
    nearest = distance;
    best = {from_start, size, name.substr(0, name.find(':'))};
  }
  return nearest != ~size_t{0};
}

std::string beside_local(uintptr_t address, size_t bytes) {
  Local local;
  if (!find_local(address, local)) return "beside a local array";
  auto end = local.offset + static_cast<std::ptrdiff_t>(bytes);
  auto size = static_cast<std::ptrdiff_t>(local.size);
  const char* name = local.name.c_str();
  const std::string whole = in_bytes(local.size);
  if (local.offset < 0)
    return format("%s before the start of the local array %s (%s)",
                  in_bytes(static_cast<size_t>(-local.offset)).c_str(), name, whole.c_str());
  if (end > size)
    return format("%s beyond the end of the local array %s (%s)",
                  in_bytes(static_cast<size_t>(end - size)).c_str(), name, whole.c_str());
  return format("in the local variable %s, whose scope has ended", name);
}

// Describe an allocation without a name.
std::string beside_allocation(uintptr_t address, size_t bytes, bool freed) {
  char name[16];
  void* region = nullptr;
  size_t size = 0;
  __asan_locate_address(reinterpret_cast<void*>(address), name, sizeof name, &region, &size);
  if (!region) return "where nothing was allocated";
  auto begin = reinterpret_cast<uintptr_t>(region);
  const std::string whole = "an allocation of " + in_bytes(size);
  // Memory that a graph has freed stays allocated, and is forbidden.
  bool inside = address >= begin && address + bytes <= begin + size;
  if (freed || inside) return "in " + whole + ", which has been freed";
  if (address < begin) return in_bytes(begin - address) + " before the start of " + whole;
  return in_bytes(address + bytes - (begin + size)) + " beyond the end of " + whole;
}

std::string where(const void* pointer, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  auto* bad = __asan_region_is_poisoned(const_cast<void*>(pointer), bytes);
  uint8_t shadow = bad ? shadow_of(reinterpret_cast<uintptr_t>(bad)) : uint8_t{0};
  // Only the first of these 8 bytes are valid: the shadow of the bytes after them gives the reason.
  if (shadow > 0 && shadow < kGranule) shadow = shadow_of(address / kGranule * kGranule + kGranule);
  if (shadow == kStackLeft || shadow == kStackMiddle || shadow == kStackRight ||
      shadow == kStackAfterScope)
    return beside_local(address, bytes);
  std::string named = shadow == kHeapFreed ? "" : describe_address(pointer, bytes);
  return named.empty() ? beside_allocation(address, bytes, shadow == kHeapFreed) : named;
}

// Return the user's line that led to this code address: helpers of the backend, from which it was
// called, are skipped.
std::string users_line(void* pc) {
  constexpr int kDeepest = 12;
  struct Search {
    void* pc;
    int frames = 0;  // since that address
    std::string line;
  } search{pc};
  auto look = [](_Unwind_Context* context, void* data) {
    auto& search = *static_cast<Search*>(data);
    auto* at = reinterpret_cast<char*>(_Unwind_GetIP(context));
    if (search.frames == 0 && at != search.pc) return _URC_NO_REASON;
    search.line = source_line(at - 1);  // a call may return to the line after its own
    bool over = !search.line.empty() || ++search.frames == kDeepest;
    return over ? _URC_END_OF_STACK : _URC_NO_REASON;
  };
  _Unwind_Backtrace(look, &search);
  return search.line;
}

[[noreturn]] void out_of_bounds(const void* address, size_t bytes, bool write, std::string line) {
  std::string text = format("out of bounds: this thread %s ", write ? "writes" : "reads") +
                     in_bytes(bytes) + ", " + where(address, bytes) + '\n';
  if (!line.empty()) text += "  at " + line + '\n';
  if (!current) {
    // The compiler does not expect this call to throw.
    fprintf(stderr, "CUDA on CPU: %s  in host code\n", text.c_str());
    _exit(1);
  }
  worker->launch()->fail(Stop::kFailed, text + describe(*current));
  worker->abandon();
}

}  // namespace

void check_access(const void* address, size_t bytes, bool write, Site site) {
  auto number = reinterpret_cast<uintptr_t>(address);
  if (number < kNullPage)  // which has no shadow; elsewhere, the fault would have no line
    trap(site, "%s", through_null(number).c_str());
  if (__asan_region_is_poisoned(const_cast<void*>(address), bytes))
    out_of_bounds(address, bytes, write, format("%s:%d", site.file, site.line));
}

void check_spans(const trace::Spans& spans, Site site) {
  for (const trace::Span& span : spans)
    check_access(span.begin, span.bytes, span.kind != trace::Kind::kRead, site);
}

void allow(const void* memory, size_t bytes) {
  __asan_unpoison_memory_region(memory, bytes);
}

void forbid(const void* memory, size_t bytes) {
  __asan_poison_memory_region(memory, bytes);
}

}  // namespace cudacpu

struct MisalignedAccess;

namespace cudacpu {
namespace {
[[noreturn]] void misaligned(const MisalignedAccess& access, uintptr_t address,
                             const std::string& line);
}
}  // namespace cudacpu

// The renamed calls.
#define CUDACPU_REPORT(access, write)                                   \
  void __wrap___asan_report_##access##1(void* address) {                \
    CUDACPU_REPORT_SIZE(write, 1)                                       \
  }                                                                     \
  void __wrap___asan_report_##access##2(void* address) {                \
    CUDACPU_REPORT_SIZE(write, 2)                                       \
  }                                                                     \
  void __wrap___asan_report_##access##4(void* address) {                \
    CUDACPU_REPORT_SIZE(write, 4)                                       \
  }                                                                     \
  void __wrap___asan_report_##access##8(void* address) {                \
    CUDACPU_REPORT_SIZE(write, 8)                                       \
  }                                                                     \
  void __wrap___asan_report_##access##16(void* address) {               \
    CUDACPU_REPORT_SIZE(write, 16)                                      \
  }                                                                     \
  void __wrap___asan_report_##access##_n(void* address, size_t bytes) { \
    CUDACPU_REPORT_SIZE(write, bytes)                                   \
  }
#define CUDACPU_REPORT_SIZE(write, bytes) \
  cudacpu::out_of_bounds(address, bytes, write, cudacpu::users_line(__builtin_return_address(0)));

extern "C" {

CUDACPU_REPORT(load, false)
CUDACPU_REPORT(store, true)

// Called by the alignment sanitizer's checks, as the compiler describes the access.
struct MisalignedAccess {
  const char* file;
  uint32_t line, column;
  struct Type {
    uint16_t kind, info;
    char name[];  // in quotes
  } const* type;
  unsigned char log_alignment;
  unsigned char kind;  // 0: load, 1: store, others: a reference or a member
};
void __wrap___ubsan_handle_type_mismatch_v1(const MisalignedAccess* access, uintptr_t address) {
  if (!address || !cudacpu::current) return;  // a null pointer faults by itself
  cudacpu::misaligned(*access, address, cudacpu::users_line(__builtin_return_address(0)));
}

// Called before a call that does not return, for locals that stay on the stack. libasan would not
// know this stack.
void __wrap___asan_handle_no_return() {
  if (!cudacpu::current) {
    __asan_handle_no_return();
    return;
  }
  auto* here = static_cast<char*>(__builtin_frame_address(0));
  auto* top = cudacpu::worker->fibers().top_of(here);
  cudacpu::allow(here, static_cast<size_t>(top - here));
}

// Called when a library is loaded, with its variables. This is how the compiler describes one.
struct Variable {
  const void* begin;
  size_t bytes;
  size_t bytes_with_gap;
  const char* name;
  const char* file;
  size_t has_constructor;
  const void* place;
  size_t indicator;
};
void __asan_register_globals(Variable* variables, size_t count);
void __wrap___asan_register_globals(Variable* variables, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    std::string name = std::string("the variable ") + variables[i].name;
    cudacpu::name_variable(variables[i].begin, variables[i].bytes, name.c_str());
  }
  __asan_register_globals(variables, count);
}

}  // extern "C"

namespace cudacpu {
namespace {

void misaligned(const MisalignedAccess& access, uintptr_t address, const std::string& line) {
  const std::string named = describe_address(reinterpret_cast<const void*>(address), 1);
  std::string text =
      format("misaligned: this thread %s %s at an address that is not a multiple of %u bytes%s%s\n",
             access.kind == 1 ? "writes" : "reads", access.type->name, 1u << access.log_alignment,
             named.empty() ? "" : ", ", named.c_str());
  if (!line.empty()) text += "  at " + line + '\n';
  worker->launch()->fail(Stop::kFailed, text + describe(*current));
  worker->abandon();
}

}  // namespace
}  // namespace cudacpu
#endif
