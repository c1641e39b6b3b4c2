// Signals in kernel code: an illegal address, a division by zero, a stack that overflows, or the
// watchdog's order to stop. Each leaves the fiber for good and lets the launch report it.
//
// The handler only notes what happened and makes the thread continue in leave_after_fault(), on the
// fiber's own stack, whose frames nobody will return to. All that takes memory or locks happens
// later, on the worker's main stack.
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

[[noreturn]] void leave_after_fault() {
  worker->abandon();
}

void* program_counter(const ucontext_t& context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(context.uc_mcontext.gregs[REG_RIP]);
#else
  return reinterpret_cast<void*>(context.uc_mcontext.pc);
#endif
}

void* stack_pointer(const ucontext_t& context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(context.uc_mcontext.gregs[REG_RSP]);
#else
  return reinterpret_cast<void*>(context.uc_mcontext.sp);
#endif
}

// The fiber that the signal came to, or null outside of kernels.
const Fiber* running_fiber(const ucontext_t& context) {
  return current && worker ? worker->fibers().holder(stack_pointer(context)) : nullptr;
}

void continue_in_leave_after_fault(ucontext_t& context, const Fiber& fiber) {
  // Well below the top of the stack, where the first frames of the fiber are.
  uintptr_t stack = reinterpret_cast<uintptr_t>(fiber.stack) + FiberPool::stack_bytes() - 16 * 1024;
  stack &= ~uintptr_t{15};
#if defined(__x86_64__)
  context.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&leave_after_fault);
  context.uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(stack - 8);  // as after a call
#else
  context.uc_mcontext.pc = reinterpret_cast<uintptr_t>(&leave_after_fault);
  context.uc_mcontext.sp = stack;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context_pointer) {
  auto& context = *static_cast<ucontext_t*>(context_pointer);
  const Fiber* fiber = running_fiber(context);
  if (!fiber) {
    // Not ours: the instruction runs again and meets the handler that was there before.
    sigaction(signal, &previous[signal], nullptr);
    return;
  }
  // An address that is not canonical raises a general protection fault, which does not tell it.
  void* address = info->si_code == SI_KERNEL ? kNotTold : info->si_addr;
  worker->fault = {signal, address, program_counter(context), current};
  continue_in_leave_after_fault(context, *fiber);
}

// Whether the address is code of the library that holds the kernel. Only there is it safe to leave
// at any instruction: elsewhere, a lock of the C library may be held.
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
  const Fiber* fiber = running_fiber(context);
  if (!fiber) return;
  const Launch* launch = worker->launch();
  void* pc = program_counter(context);
  if (!launch || !launch->stopping() || !is_kernel_code(pc, *launch)) return;
  worker->fault = {signal, nullptr, pc, current};
  continue_in_leave_after_fault(context, *fiber);
}

}  // namespace

void install_fault_handlers() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    action.sa_sigaction = on_fault;
    for (int signal : kFaults) sigaction(signal, &action, &previous[signal]);
    action.sa_sigaction = on_watch;
    action.sa_flags |= SA_RESTART;
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
        text = "illegal memory access at an address that cannot exist";
      else if (worker.fibers().holder(fault.address))
        text = format("stack overflow: the local variables of a thread need more than %zu KB",
                      FiberPool::stack_bytes() / 1024);
      else if (address < 65536)
        text = format("illegal memory access through a null pointer (address 0x%zx)", address);
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
