// Signals in kernel code: an illegal address, a division by zero, a stack that overflows, or the
// watchdog's order to stop. Each leaves the fiber for good and lets the launch report it.
//
// The handler only notes what happened and lets the worker's main loop go on. All that takes memory
// or locks happens there.
#include "runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <ucontext.h>

namespace cudacpu {

namespace {

constexpr size_t kSignalStackBytes = 64 * 1024;
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[NSIG];
void* const kNotTold = reinterpret_cast<void*>(~uintptr_t{0});

void* program_counter(const ucontext_t& context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(context.uc_mcontext.gregs[REG_RIP]);
#else
  return reinterpret_cast<void*>(context.uc_mcontext.pc);
#endif
}

bool in_kernel() {
  return current && worker;
}

// Let the OS thread continue in its worker's main loop when the handler returns. The stack pointer
// is of no use for that: after an overflow, it may point anywhere.
void leave_fiber_for_good(ucontext_t& context) {
  void* main = worker->next_is_main();
#if defined(__x86_64__)
  context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&cudacpu_continue);
  context.uc_mcontext.gregs[REG_RDI] = reinterpret_cast<greg_t>(main);
#else
  context.uc_mcontext.pc = reinterpret_cast<uintptr_t>(&cudacpu_continue);
  context.uc_mcontext.regs[0] = reinterpret_cast<uintptr_t>(main);
#endif
}

void on_fault(int signal, siginfo_t* info, void* context_pointer) {
  auto& context = *static_cast<ucontext_t*>(context_pointer);
  if (!in_kernel()) {
    if (host_may_go_on(info->si_addr, program_counter(context))) return;
    explain_host_access(info->si_addr, program_counter(context));
    // Not ours: the instruction runs again and meets the handler that was there before.
    sigaction(signal, &previous[signal], nullptr);
    return;
  }
  // An address that is not canonical raises a general protection fault, which does not report it.
  void* address = info->si_code == SI_KERNEL ? kNotTold : info->si_addr;
  worker->fault = {signal, address, program_counter(context), current};
  leave_fiber_for_good(context);
}

// Return true if the address is code of the library that holds the kernel. Leaving at any
// instruction is safe only there: elsewhere, a lock of the C library may be held.
bool is_kernel_code(const void* pc, const Launch& launch) {
  struct Search {
    uintptr_t pc, kernel;
    bool found;
  } search{reinterpret_cast<uintptr_t>(pc), reinterpret_cast<uintptr_t>(launch.loop), false};
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto& search = *static_cast<Search*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      uintptr_t begin = info->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
      if (search.kernel < begin || search.kernel >= end) continue;
      search.found = search.pc >= begin && search.pc < end;
      return 1;
    }
    return 0;
  };
  dl_iterate_phdr(look, &search);
  return search.found;
}

void on_watch(int signal, siginfo_t*, void* context_pointer) {
  auto& context = *static_cast<ucontext_t*>(context_pointer);
  if (!worker || !worker->launch()) return;
  const Launch* launch = worker->launch();
  void* pc = program_counter(context);
  if (!launch->stopping()) {
    worker->answer_watchdog();
    return;
  }
  if (!in_kernel() || !is_kernel_code(pc, *launch)) return;
  worker->fault = {signal, nullptr, pc, current};
  leave_fiber_for_good(context);
}

}  // namespace

void install_fault_handlers() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    action.sa_sigaction = on_fault;
    for (int signal : kFaults) sigaction(signal, &action, &previous[signal]);
    // Without SA_NODEFER. These signals queue up while the OS thread waits for a core, and would be
    // delivered on top of each other: a frame takes 12 KB where a thread has used AMX (PyTorch's
    // bf16 products do), and a few of them overflow the signal stack.
    action.sa_sigaction = on_watch;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(watch_signal(), &action, nullptr);
    return true;
  }();
  static_cast<void>(installed);
}

// A stack overflow leaves no room for the handler: it needs a stack of its own.
void use_signal_stack() {
  struct SignalStack {
    std::unique_ptr<char[]> memory{new char[kSignalStackBytes]};
    SignalStack() {
      stack_t stack = {};
      stack.ss_sp = memory.get();
      stack.ss_size = kSignalStackBytes;
      sigaltstack(&stack, &before);
    }
    ~SignalStack() { sigaltstack(&before, nullptr); }
    stack_t before;
  };
  static thread_local SignalStack stack;
  static_cast<void>(stack);
}

namespace {

// Return true if the instruction moves a vector and requires an aligned address (movaps, movdqa and
// their like, also as AVX). x86 raises a general protection fault only for these, and for an
// address that is not canonical.
bool is_aligned_move([[maybe_unused]] const void* pc) {
#if defined(__x86_64__)
  auto* at = static_cast<const uint8_t*>(pc);
  if (*at == 0xc5) {  // VEX, 2 bytes
    at += 2;
  } else if (*at == 0xc4) {  // VEX, 3 bytes
    if ((at[1] & 0x1f) != 1) return false;
    at += 3;
  } else {
    if (*at == 0x66 || *at == 0xf3 || *at == 0xf2) ++at;
    if ((*at & 0xf0) == 0x40) ++at;  // REX
    if (*at++ != 0x0f) return false;
  }
  for (uint8_t opcode : {0x28, 0x29, 0x2b, 0x6f, 0x7f, 0xe7})
    if (*at == opcode) return true;
#endif
  return false;
}

std::string explain_fault(const Worker& worker) {
  const Worker::Fault& fault = worker.fault;
  auto address = reinterpret_cast<uintptr_t>(fault.address);
  std::string text;
  switch (fault.signal) {
    case SIGFPE:
      text = "integer division by zero";
      break;
    case SIGILL:
      text = "an illegal instruction";
      break;
    case SIGSEGV:
    case SIGBUS:
      if (fault.address == kNotTold)
        text =
            is_aligned_move(fault.pc)
                ? "a misaligned access: a load or store of 16 bytes or more (float4 and its like) "
                  "whose address is not a multiple of its size"
                : "illegal memory access at a non-canonical address";
      else if (std::string name = read_only_tensor_at(fault.address); !name.empty())
        text = "a write to " + name + ", which the operator's schema does not mark as written";
      else if (worker.fibers().is_guard(fault.address))
        text = format("stack overflow: the local variables of a thread need more than %zu KB",
                      FiberPool::stack_bytes() / 1024);
      else if (const ResidentBlock* block = worker.closed_arena_at(fault.address))
        text = explain_closed_arena(*block);
      else if (address < 65536)
        text = through_null(address);
      else
        text = format("illegal memory access at address 0x%zx", address);
      break;
    default:
      text = "  stopped";
  }
  std::string line = source_line(fault.pc);
  if (!line.empty()) text += "\n  at " + line;
  return text + "\n" + describe(*fault.thread);
}

}  // namespace

void Worker::report_fault() {
  std::string text = explain_fault(*this);
  if (fault.signal == watch_signal())
    launch_->add(text);  // where the launch was when its time was up
  else
    launch_->fail(Stop::kFailed, std::move(text));
  fault = Fault{};
}

}  // namespace cudacpu
