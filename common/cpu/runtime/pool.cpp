// The OS threads that run launches: the one that launches, and a pool beside it.
#include "runtime.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <thread>

namespace cudacpu {

namespace {

struct Pool {
  std::mutex in_use;  // by one launch at a time; another runs on its own thread alone
  std::mutex mutex;   // guards what follows
  std::condition_variable work, done;
  Launch* launch = nullptr;
  uint64_t generation = 0;
  unsigned threads = 0;
  unsigned wanted = 0;
  unsigned joined = 0;
};

struct Registry {
  std::mutex mutex;
  std::vector<Worker*> workers;
};

// Neither is ever destroyed: pool threads outlive the end of main(). A forked child has none of the
// threads and gets new ones; what a lock was held for at the fork stays as it was, unused.
Pool* pool = new Pool;
Registry* registry = new Registry;

void renew_after_fork() {
  pool = new Pool;
  registry = new Registry;
  if (worker) registry->workers.push_back(worker);
}

const int fork_handler = pthread_atfork(nullptr, nullptr, renew_after_fork);

struct RegisteredWorker {
  Worker worker;

  explicit RegisteredWorker(unsigned number) : worker(number) {
    std::lock_guard lock(registry->mutex);
    registry->workers.push_back(&worker);
  }
  ~RegisteredWorker() {
    std::lock_guard lock(registry->mutex);
    std::erase(registry->workers, &worker);
  }
};

void become_worker(unsigned number) {
  static thread_local std::unique_ptr<RegisteredWorker> owned;
  owned = std::make_unique<RegisteredWorker>(number);
  worker = &owned->worker;
}

void pool_thread(unsigned number) {
  // Signals such as SIGINT are for the threads of the program that uses this library.
  sigset_t all;
  sigfillset(&all);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, watch_signal()})
    sigdelset(&all, signal);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  become_worker(number);
  uint64_t seen = 0;
  std::unique_lock lock(pool->mutex);
  for (;;) {
    pool->work.wait(
        lock, [&] { return pool->launch && pool->generation != seen && number < pool->wanted; });
    seen = pool->generation;
    Launch& launch = *pool->launch;
    ++pool->joined;
    lock.unlock();
    worker->run(launch);
    lock.lock();
    if (--pool->joined == 0) pool->done.notify_all();
  }
}

}  // namespace

Worker& this_worker() {
  if (!worker) become_worker(0);
  return *worker;
}

void run_on_workers(Launch& launch) {
  unsigned wanted =
      static_cast<unsigned>(std::min<uint64_t>(settings().threads.load(), launch.clusters));
  // Fibers do not move between OS threads: blocks that wait for each other share one.
  if (launch.config.cooperative || trace::is_on()) wanted = 1;
  std::unique_lock use(pool->in_use, std::defer_lock);
  if (wanted <= 1 || !use.try_lock()) {
    this_worker().run(launch);
    return;
  }
  {
    std::lock_guard lock(pool->mutex);
    while (pool->threads + 1 < wanted) std::thread(pool_thread, ++pool->threads).detach();
    pool->launch = &launch;
    pool->wanted = wanted;
    ++pool->generation;
  }
  pool->work.notify_all();
  this_worker().run(launch);
  // No worker joins from here on; those that have joined must leave before the launch may end.
  std::unique_lock lock(pool->mutex);
  pool->launch = nullptr;
  pool->done.wait(lock, [] { return pool->joined == 0; });
}

bool everybody_polls(const Launch& launch, double since) {
  constexpr double kFresh = 0.02;  // s; longer ago, and it may be computing meanwhile
  double now = seconds();
  std::lock_guard lock(registry->mutex);
  for (Worker* other : registry->workers) {
    if (other->working_on.load() != &launch) continue;
    double start = other->polling_since.load();
    if (start == 0 || start > since || other->polling_at.load() < now - kFresh) return false;
  }
  return true;
}

bool somebody_answered_alike(const Launch& launch, unsigned times) {
  std::lock_guard lock(registry->mutex);
  return std::any_of(registry->workers.begin(), registry->workers.end(), [&](Worker* other) {
    return other->working_on.load() == &launch && other->same_answers.load() >= times;
  });
}

void signal_workers(const Launch& launch, int signal) {
  std::lock_guard lock(registry->mutex);
  for (Worker* other : registry->workers)
    if (other->working_on.load() == &launch) pthread_kill(other->os_thread, signal);
}

}  // namespace cudacpu
