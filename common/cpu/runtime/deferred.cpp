// The mode in which the work of streams is put off as late as legal (settings().late_streams).
//
// A call that gives a stream something to do returns at once. The work runs when a call waits for
// it: then all that it comes after runs first, and nothing else does. Of that, what was submitted
// last runs first as far as the order allows, so that an operation that lacks an event overtakes
// the one that it needs. In random order of blocks, any that may be next is.
#include "graph.h"

#include <functional>
#include <unordered_map>

namespace cudacpu {

// One operation of a stream.
struct Deferred {
  uint64_t number;                  // as they were submitted
  std::vector<DeferredWork> after;  // what has to be done first
  std::function<cudaError_t()> act;
  std::string what;  // for a message; "" where it has no effect that a program can see
  std::vector<const void*> uses = {};  // addresses in the memory that it reads or writes
  bool done = false;
  unsigned not_ready = 0;  // how often a query returned cudaErrorNotReady
  double done_at = -1;     // s, as seconds() counts
};

// The last operation of a stream, which outlives the stream.
struct DeferredQueue {
  bool blocking;  // ordered with the legacy default stream
  DeferredWork last = {};
};

namespace {

// The number of queries that report unfinished work; the next one runs it, so that polling ends.
constexpr unsigned kNotReadyAnswers = 3;

// With a limit to the number of operations that are late, the last of them: what happened to it
// tells which wait is missing. Those after it run when they are submitted.
struct LastLate {
  uint64_t limit = ~uint64_t{0};
  DeferredWork work = {};
  std::string name = {}, ran_at = {};
  std::string overtaken_by = {};  // the first operation that uses its memory and ran before it
};

struct Deferrals {
  std::recursive_mutex mutex;  // recursive: a host function may call the API
  std::vector<std::shared_ptr<DeferredQueue>> queues;  // but the legacy default stream's
  DeferredQueue legacy{true};
  uint64_t submitted = 0;
  std::unordered_map<const Deferred*, DeferredWork> pending;
  LastLate last_late;
};

Deferrals& deferrals() {
  static auto& instance = *new Deferrals;
  return instance;
}

// The functions below are called with the lock held.

DeferredQueue& queue_of(CUstream_st& stream) {
  if (!stream.queue) {
    auto& queues = deferrals().queues;
    std::erase_if(queues, [](const auto& queue) {
      return queue.use_count() == 1 && (!queue->last || queue->last->done);
    });
    const bool blocking = !(stream.flags & cudaStreamNonBlocking);
    stream.queue = std::make_shared<DeferredQueue>(DeferredQueue{blocking});
    queues.push_back(stream.queue);
  }
  return *stream.queue;
}

// Return the operations that the next one of this stream comes after: the stream's last one, and
// across the legacy default stream those of all streams that are ordered with it.
std::vector<DeferredWork> tails_of(cudaStream_t handle) {
  CUstream_st* stream = stream_at(handle);
  std::vector<DeferredWork> tails;
  auto add = [&](const DeferredQueue& queue) {
    if (queue.last && !queue.last->done) tails.push_back(queue.last);
  };
  if (stream) add(queue_of(*stream));
  if (!stream || !(stream->flags & cudaStreamNonBlocking)) add(deferrals().legacy);
  if (!stream)
    for (const auto& queue : deferrals().queues)
      if (queue->blocking) add(*queue);
  return tails;
}

DeferredWork push(cudaStream_t handle, std::string what, std::function<cudaError_t()> act) {
  CUstream_st* stream = stream_at(handle);
  auto work = std::make_shared<Deferred>(
      Deferred{++deferrals().submitted, tails_of(handle), std::move(act), std::move(what)});
  (stream ? queue_of(*stream) : deferrals().legacy).last = work;
  deferrals().pending[work.get()] = work;
  return work;
}

// Return the rank of an operation: of two that may both be next, the one of higher rank runs.
uint64_t rank_of(const Deferred& work, const Schedule& schedule) {
  if (schedule.blocks != Order::kRandom) return work.number;
  uint64_t mixed = (work.number + schedule.seed) * 0x9e3779b97f4a7c15ull;
  return (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9ull;
}

bool shares_memory(const Deferred& a, const Deferred& b) {
  auto is_shared = [&](const void* address) {
    const void* memory = allocation_around(address).first;
    return memory && std::any_of(b.uses.begin(), b.uses.end(), [=](const void* other) {
             return allocation_around(other).first == memory;
           });
  };
  return std::any_of(a.uses.begin(), a.uses.end(), is_shared);
}

// The name of an operation that is submitted now, with its place: a launch has it in its name.
std::string with_line(const std::string& what) {
  const bool has_line = what.find(", launched at ") != std::string::npos;
  const std::string line = has_line ? "" : calling_line();
  return line.empty() ? what : what + " at " + line;
}

// Record that an operation runs, for the last late one.
void note_run(const Deferred& work) {
  LastLate& last = deferrals().last_late;
  if (!last.work) return;
  if (&work == last.work.get()) {
    last.ran_at = calling_line();
  } else if (!last.work->done && last.overtaken_by.empty() && shares_memory(work, *last.work)) {
    last.overtaken_by = with_line(work.what);
  }
}

cudaError_t perform_now(Deferred& work) {
  note_run(work);
  work.done = true;  // also if it throws: what failed does not run again
  work.after.clear();
  auto act = std::move(work.act);
  const cudaError_t error = act ? act() : cudaSuccess;
  work.done_at = seconds();
  return error;
}

// Run these, and first all that they come after. Return the first error.
cudaError_t complete(const std::vector<DeferredWork>& targets) {
  struct Node {
    size_t missing = 0;
    std::vector<Deferred*> dependents = {};
  };
  std::unordered_map<Deferred*, Node> nodes;
  std::vector<DeferredWork> needed;  // keeps them
  auto need = [&](const DeferredWork& work) {
    if (!work->done && nodes.try_emplace(work.get()).second) needed.push_back(work);
  };
  for (const DeferredWork& target : targets) need(target);
  for (size_t i = 0; i < needed.size(); ++i) {
    const DeferredWork work = needed[i];
    for (const DeferredWork& before : work->after) {
      if (before->done) continue;
      need(before);
      nodes[before.get()].dependents.push_back(work.get());
      ++nodes[work.get()].missing;
    }
  }
  const Schedule schedule = settings().schedule.load();
  auto runs_later = [&](const Deferred* a, const Deferred* b) {
    return rank_of(*a, schedule) < rank_of(*b, schedule);
  };
  std::vector<Deferred*> ready;  // a heap
  for (const DeferredWork& work : needed)
    if (!nodes[work.get()].missing) ready.push_back(work.get());
  std::make_heap(ready.begin(), ready.end(), runs_later);
  cudaError_t first = cudaSuccess;
  while (!ready.empty()) {
    std::pop_heap(ready.begin(), ready.end(), runs_later);
    Deferred* next = ready.back();
    ready.pop_back();
    deferrals().pending.erase(next);
    if (!next->done) {  // a host function may have waited for it meanwhile
      const cudaError_t error = perform_now(*next);
      if (first == cudaSuccess) first = error;
    }
    for (Deferred* dependent : nodes[next].dependents) {
      if (--nodes[dependent].missing) continue;
      ready.push_back(dependent);
      std::push_heap(ready.begin(), ready.end(), runs_later);
    }
  }
  if (deferrals().pending.empty()) forget_freed_memory();
  return first;
}

// For a query of what runs after these.
cudaError_t answer(const std::vector<DeferredWork>& tails) {
  if (tails.empty()) return cudaSuccess;
  if (tails.back()->not_ready++ < kNotReadyAnswers) return set_error(cudaErrorNotReady);
  return complete(tails);
}

std::vector<DeferredWork> all_pending() {
  std::vector<DeferredWork> all;
  for (const auto& [work, owner] : deferrals().pending) all.push_back(owner);
  return all;
}

}  // namespace

DeferredWork defer(cudaStream_t stream, std::string what, std::function<cudaError_t()> act,
                   std::vector<const void*> uses) {
  std::lock_guard lock(deferrals().mutex);
  DeferredWork work = push(stream, std::move(what), std::move(act));
  work->uses = std::move(uses);
  LastLate& last = deferrals().last_late;
  if (work->number > last.limit) complete({work});
  if (work->number == last.limit) {
    // The record of an event stands for the operation before it.
    const bool stands_for_another = work->what.empty() && !work->after.empty();
    last.work = stands_for_another ? work->after.front() : work;
    last.name = stands_for_another ? last.work->what : with_line(work->what);
  }
  return work;
}

cudaError_t defer(cudaStream_t stream, const HostCall& call) {
  if (cudaError_t error = check(call); error != cudaSuccess) return error;
  defer(stream, "a host function", [call] { return perform(call); });
  return cudaSuccess;
}

cudaError_t defer(cudaStream_t stream, const Release& release) {
  defer(stream, "", [release] { return perform(release); });
  return cudaSuccess;
}

cudaError_t defer(cudaStream_t stream, KernelWork work) {
  std::string what =
      format("kernel %s, launched at %s:%d", work.site.kernel ? work.site.kernel : "(unknown)",
             work.site.file, work.site.line);
  const CallType& type = *work.call_type;
  std::vector<void*> arguments(type.count + 1);
  type.find_arguments(work.call, arguments.data());
  std::vector<const void*> uses;
  for (size_t i = 0; i < type.count; ++i)
    if (type.arguments[i].kind == ArgumentKind::kPointer)
      uses.push_back(*static_cast<void**>(arguments[i]));
  auto act = [work = std::move(work), what, uses] {
    for (const void* address : uses) refuse_freed_memory(address, what);
    return perform(work);
  };
  defer(stream, what, std::move(act), uses);
  return cudaSuccess;
}

cudaError_t wait_for(cudaStream_t stream) {
  if (!streams_are_late()) return lost_context();
  std::lock_guard lock(deferrals().mutex);
  const cudaError_t error = complete(tails_of(stream));
  return error != cudaSuccess ? error : lost_context();
}

cudaError_t wait_for(const DeferredWork& work) {
  if (!work) return lost_context();
  std::lock_guard lock(deferrals().mutex);
  const cudaError_t error = complete({work});
  return error != cudaSuccess ? error : lost_context();
}

cudaError_t wait_for_all() {
  if (!streams_are_late()) return lost_context();
  std::lock_guard lock(deferrals().mutex);
  const cudaError_t error = complete(all_pending());
  return error != cudaSuccess ? error : lost_context();
}

cudaError_t query(cudaStream_t stream) {
  if (!streams_are_late()) return lost_context();
  std::lock_guard lock(deferrals().mutex);
  return answer(tails_of(stream));
}

cudaError_t query(const DeferredWork& work) {
  if (!work) return lost_context();
  std::lock_guard lock(deferrals().mutex);
  return work->done ? cudaSuccess : answer({work});
}

void defer_wait(cudaStream_t stream, const DeferredWork& event) {
  if (!event) return;
  std::lock_guard lock(deferrals().mutex);
  if (!event->done) push(stream, "", nullptr)->after.push_back(event);
}

std::optional<double> time_of(const DeferredWork& work) {
  std::lock_guard lock(deferrals().mutex);
  return work->done ? std::optional(work->done_at) : std::nullopt;
}

}  // namespace cudacpu

using namespace cudacpu;

namespace {

// Return what fails in a wait, as text, or "".
std::string failure_of(const std::function<cudaError_t()>& wait) {
  try {
    const cudaError_t error = wait();
    return error == cudaSuccess ? "" : cudaGetErrorString(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

extern "C" {

void cudacpu_set_late_streams(int on) {
  wait_for_all();
  settings().late_streams = on != 0;
}

// Return the operation that was submitted first of those that nothing has waited for, or "". The
// text is valid until the next call.
const char* cudacpu_unfinished_work() {
  static std::string text;
  std::lock_guard lock(deferrals().mutex);
  const Deferred* first = nullptr;
  for (const auto& [work, owner] : deferrals().pending)
    if (!work->what.empty() && (!first || work->number < first->number)) first = work;
  text = first ? first->what : "";
  return text.c_str();
}

// Let only the operations up to this number be late.
void cudacpu_set_last_late(uint64_t number) {
  deferrals().last_late.limit = number;
}

// Return the number of operations, and what happened to the last late one. The text is valid until
// the next call.
const char* cudacpu_last_late() {
  static std::string text;
  const LastLate& last = deferrals().last_late;
  text = format("%llu operations", static_cast<unsigned long long>(deferrals().submitted));
  if (last.name.empty()) return text.c_str();
  text += "\nnothing waits in time for " + last.name;
  if (last.ran_at.empty())
    text += ", which runs at the end of the program";
  else if (last.overtaken_by.empty())
    text += ", which runs only at the wait at " + last.ran_at +
            ": the host uses its memory before that, without a wait";
  else
    text += ", which runs only at the wait at " + last.ran_at + ", after " + last.overtaken_by +
            ", which uses the same memory";
  return text.c_str();
}

// Run all deferred work. Throw what the work throws.
void cudacpu_finish_work() {
  wait_for_all();
}

// Begin a launcher's check with late streams. pinned: all host arrays count as pinned, because
// their copies are the latest. The current stream is not the default one, even if the arguments are
// host arrays.
void cudacpu_begin_late_check(int pinned) {
  play_current_stream(true);
  settings().host_is_pinned = pinned != 0;
  settings().late_streams = true;
}

// Copy an argument late, in the current stream.
void cudacpu_copy_late(uintptr_t to, uintptr_t from, size_t bytes) {
  defer(current_stream(), "a copy of an argument", [=] {
    const MemoryOpen open;
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return cudaSuccess;
  });
}

// Run what the current stream waits for, before host code of PyTorch does its own work in that
// stream. Return what failed, or "". The text is valid until the next call.
const char* cudacpu_wait_for_current_stream() {
  static std::string text;
  text = failure_of([] { return wait_for(current_stream()); });
  return text.c_str();
}

// End the check: run what the current stream waits for, then all else. Return what failed, or the
// work that the current stream does not wait for, or "". The text is valid until the next call.
const char* cudacpu_end_late_check() {
  static std::string text;
  text = failure_of([] { return wait_for(current_stream()); });
  const std::string unfinished = cudacpu_unfinished_work();
  if (text.empty() && !unfinished.empty())
    text = "CUDA on CPU: the current stream does not wait for " + unfinished +
           "\n  record an event behind it, and let the current stream wait for that event";
  // An exception ends a wait early: no work may be left when the check's memory is freed.
  while (!deferrals().pending.empty()) {
    const std::string failure = failure_of(wait_for_all);
    if (text.empty()) text = failure;
  }
  forget_freed_memory();
  play_current_stream(false);
  settings().late_streams = false;
  settings().host_is_pinned = false;
  return text.c_str();
}

}  // extern "C"
