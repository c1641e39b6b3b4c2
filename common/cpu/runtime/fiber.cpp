// Fibers: a stack each, and the switch between two of them.
#include "runtime.h"

#include <sys/mman.h>
#include <unistd.h>

namespace cudacpu {

// cudacpu_suspend (thread.h) saves the callee-saved registers on the present stack, asks `decide`
// where to go on, and goes on there. cudacpu_continue only goes on. About 2 ns; swapcontext takes
// 100 times that, for the signal mask alone.
//
// Both end in a jump. A kernel calls cudacpu_suspend directly, with no function in between, so that
// no `ret` follows: the processor predicts a `ret` to return to the last call, which was the other
// thread's. The target of the jump is the same for all threads that wait at one barrier.
//
// The floating-point control registers are not switched: kernels do not change them.
#if defined(__x86_64__)
__asm__(R"(
.text
.globl cudacpu_suspend
.type cudacpu_suspend, @function
.align 16
cudacpu_suspend:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rsp, %rsi
  subq $8, %rsp
  call *%rax
  movq %rax, %rdi
.globl cudacpu_continue
.hidden cudacpu_continue
.type cudacpu_continue, @function
cudacpu_continue:
  movq %rdi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size cudacpu_suspend, .-cudacpu_suspend
)");
constexpr int kSavedWords = 6;     // below the return address
constexpr int kReturnAddress = 6;  // its place, in words from the stack pointer
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl cudacpu_suspend
.type cudacpu_suspend, %function
.align 4
cudacpu_suspend:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, x0
  mov x0, x1
  mov x1, sp
  blr x9
.globl cudacpu_continue
.hidden cudacpu_continue
.type cudacpu_continue, %function
cudacpu_continue:
  mov sp, x0
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size cudacpu_suspend, .-cudacpu_suspend
)");
constexpr int kSavedWords = 20;
constexpr int kReturnAddress = 11;  // x30
#else
#error "the CPU backend has a context switch for x86-64 and aarch64 only"
#endif

void fiber_main();

namespace {

// More than a page, for gcc's stack probes (-fstack-clash-protection) on aarch64 expect 64 KB.
constexpr size_t kGuardBytes = 17 * 4096;
constexpr unsigned kFibersPerMapping = 64;

// Room for a thread's local arrays. Only what is touched takes memory. With the guard, stacks
// are an odd number of pages apart: at a power of two, their tops would compete for the same cache
// lines, and a barrier would take 1.5 times as long.
constexpr size_t kStackBytes = 256 * 1024;

// Make the page below a stack inaccessible. Linux 6.13 can do that within a mapping; before, it
// cuts the mapping in two, and a process has no more than 65,530. Many cores with many threads each
// come near that: the last of them go without a guard.
bool protect(char* guard) {
  constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL, which glibc 2.36 does not know
  constexpr int kMaxCuts = 25'000;
  static std::atomic<int> cuts{0};
  if (madvise(guard, kGuardBytes, kGuardInstall) == 0) return true;
  if (cuts.fetch_add(1) >= kMaxCuts) return true;
  return mprotect(guard, kGuardBytes, PROT_NONE) == 0;
}

extern "C" void cudacpu_fiber_entry() {
  fiber_main();
  __builtin_trap();  // fiber_main never returns
}

}  // namespace

size_t FiberPool::stack_bytes() {
  return kStackBytes;
}

FiberPool::~FiberPool() {
  for (void* mapping : mappings_) munmap(mapping, kFibersPerMapping * (kStackBytes + kGuardBytes));
}

Fiber* FiberPool::take() {
  if (!free_ && !grow()) return nullptr;
  Fiber* fiber = free_;
  free_ = fiber->next;
  return fiber;
}

bool FiberPool::grow() {
  constexpr size_t stride = kStackBytes + kGuardBytes;
  void* base = mmap(nullptr, kFibersPerMapping * stride, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  mappings_.push_back(base);
  for (unsigned i = kFibersPerMapping; i-- > 0;) {
    char* guard = static_cast<char*>(base) + i * stride;
    if (!protect(guard)) return free_ != nullptr;
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = guard + kGuardBytes;
    fiber->number = static_cast<unsigned>(fibers_.size());
    prepare(*fiber);
    give(fiber.get());
    fibers_.push_back(std::move(fiber));
  }
  return true;
}

void FiberPool::prepare(Fiber& fiber) {
  // Stacks that started at the same offset in a page would all compete for the same cache lines.
  uintptr_t top = reinterpret_cast<uintptr_t>(fiber.stack) + kStackBytes - fiber.number % 61 * 64;
  auto** stack = reinterpret_cast<void**>(top & ~uintptr_t{15});
#if defined(__x86_64__)
  *--stack = nullptr;  // the return address of the entry, and the alignment that a call leaves
  *--stack = reinterpret_cast<void*>(&cudacpu_fiber_entry);
#endif
  stack -= kSavedWords;
  for (int i = 0; i < kSavedWords; ++i) stack[i] = nullptr;
  stack[kReturnAddress] = reinterpret_cast<void*>(&cudacpu_fiber_entry);
  fiber.stack_pointer = stack;
}

void FiberPool::reset() {
  free_ = nullptr;
  for (auto& fiber : fibers_) {
    allow(fiber->stack, kStackBytes);  // what its functions had forbidden beside their locals
    prepare(*fiber);
    give(fiber.get());
  }
}

const char* FiberPool::top_of(const void* address) const {
  auto* at = static_cast<const char*>(address);
  for (auto& fiber : fibers_)
    if (at >= fiber->stack && at < fiber->stack + kStackBytes) return fiber->stack + kStackBytes;
  return at;
}

std::pair<const void*, const void*> FiberPool::mapping_of(const void* address) const {
  constexpr size_t bytes = kFibersPerMapping * (kStackBytes + kGuardBytes);
  for (void* mapping : mappings_) {
    const char* end = static_cast<const char*>(mapping) + bytes;
    if (address >= mapping && address < end) return {mapping, end};
  }
  return {nullptr, nullptr};
}

bool FiberPool::is_guard(const void* address) const {
  auto* at = static_cast<const char*>(address);
  for (auto& fiber : fibers_)
    if (at < fiber->stack && at >= fiber->stack - kGuardBytes) return true;
  return false;
}

}  // namespace cudacpu
