// A thread that ends launches which take too long, and lets Ctrl-C end any.
//
// A launch only enters itself in a list. The watchdog looks at the list every few milliseconds, and
// notes when it first saw each: a short launch never pays for a clock.
#include "runtime.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <thread>

namespace cudacpu {

namespace {

constexpr useconds_t kTick = 10'000;     // µs
constexpr double kInterruptible = 0.05;  // s; launches that take longer can be interrupted
constexpr int kIdleTicks = 200;          // with nothing to watch, until it goes to sleep
constexpr double kPatience = 4;          // times the limit, by the clock

struct Watched {
  Launch* launch;
  double first_seen = 0;  // 0: not yet
  double cpu_before = 0;  // s of CPU time that the process had used then
  double progress_after = settings().progress_after;
};

struct Watchdog {
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<Watched> launches;
  bool running = false;
  bool asleep = false;
  bool handles_interrupt = false;
};

Watchdog* watchdog = new Watchdog;

std::atomic<bool> interrupted{false};
struct sigaction previous_interrupt;  // Python's handler, usually

void on_interrupt(int signal, siginfo_t* info, void* context) {
  interrupted.store(true);
  // Python's own handler notes the signal; KeyboardInterrupt follows as soon as Python runs again.
  if (previous_interrupt.sa_flags & SA_SIGINFO)
    previous_interrupt.sa_sigaction(signal, info, context);
  else
    previous_interrupt.sa_handler(signal);
}

// Take over SIGINT only while a long launch runs: short ones need no handler, and a handler
// installed between launches does not interfere.
void take_interrupts() {
  struct sigaction now;
  sigaction(SIGINT, nullptr, &now);
  if (!(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN))
    return;
  previous_interrupt = now;
  interrupted.store(false);
  struct sigaction action = {};
  action.sa_sigaction = on_interrupt;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGINT, &action, nullptr);
  watchdog->handles_interrupt = true;
}

void give_back_interrupts() {
  watchdog->handles_interrupt = false;
  struct sigaction now;
  sigaction(SIGINT, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_interrupt)
    sigaction(SIGINT, &previous_interrupt, nullptr);
}

void show_progress(Watched& watched, double taken) {
  const Launch& launch = *watched.launch;
  const uint64_t begun = std::min(launch.next_position.load(), launch.clusters);
  fprintf(stderr, "%.2g s so far, %llu of %llu blocks begun, %s\n", taken,
          static_cast<unsigned long long>(begun * launch.cluster_size),
          static_cast<unsigned long long>(launch.blocks),
          launch.describe().c_str() + 2);  // without its indent
  watched.progress_after *= 2;
}

// Of all threads of this process, in seconds.
double cpu_seconds() {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Return true if a launch has exceeded its time. On a busy machine the clock alone would end a
// correct launch, so CPU time counts too; a launch that waits without using any ends after
// kPatience limits.
bool is_over(const Watched& watched, double now, double limit) {
  const double taken = now - watched.first_seen;
  if (taken <= limit) return false;
  return taken > kPatience * limit || cpu_seconds() - watched.cpu_before > limit;
}

void look_at(Watched& watched, double now) {
  Launch& launch = *watched.launch;
  if (watched.first_seen == 0) watched.first_seen = now, watched.cpu_before = cpu_seconds();
  double limit = settings().time_limit.load();
  if (now - watched.first_seen > kInterruptible && !watchdog->handles_interrupt) take_interrupts();
  if (watchdog->handles_interrupt && interrupted.load())
    launch.fail(Stop::kInterrupted, "the launch was interrupted\n");
  if (is_over(watched, now, limit))
    launch.fail(
        Stop::kTimeLimit,
        format("the launch did not finish within %g s: an endless loop, a loop that waits for "
               "another thread without ever letting it run (it needs an atomic or "
               "__nanosleep), or more work than a CPU can do\n",
               limit));
  if (now - watched.first_seen > watched.progress_after && !launch.stopping())
    show_progress(watched, now - watched.first_seen);
  double stuck = settings().stuck_limit.load();
  if (stuck < limit && !launch.stopping()) {
    // In answers, not by the clock: an OS thread that is not scheduled is not stuck.
    if (somebody_answered_alike(launch, static_cast<unsigned>(stuck * 1e6 / kTick)))
      launch.fail(Stop::kTimeLimit,
                  format("a thread has run for %g s and reached neither a barrier nor its end: an "
                         "endless loop, or one that waits for another thread without ever letting "
                         "it run (it needs an atomic or __nanosleep)\n",
                         stuck));
    else
      signal_workers(launch, watch_signal());
  }
  // Workers notice at their next barrier or thread; one that computes has to be stopped.
  if (launch.stopping()) signal_workers(launch, watch_signal());
}

void watch() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  int idle = 0;
  std::unique_lock lock(watchdog->mutex);
  for (;;) {
    if (idle > kIdleTicks) {
      watchdog->asleep = true;
      watchdog->wake.wait(lock, [] { return !watchdog->launches.empty(); });
      watchdog->asleep = false;
      idle = 0;
    }
    lock.unlock();
    usleep(kTick);
    lock.lock();
    idle = watchdog->launches.empty() ? idle + 1 : 0;
    double now = seconds();
    for (Watched& watched : watchdog->launches) look_at(watched, now);
  }
}

void renew_watchdog() {
  watchdog = new Watchdog;
}
const int fork_handler_of_watchdog = pthread_atfork(nullptr, nullptr, renew_watchdog);

}  // namespace

int watch_signal() {
  return SIGRTMIN + 7;
}

Watch::Watch(Launch& launch) {
  std::lock_guard lock(watchdog->mutex);
  watchdog->launches.push_back({&launch});
  if (!watchdog->running) {
    watchdog->running = true;
    std::thread(watch).detach();
  }
  if (watchdog->asleep) watchdog->wake.notify_one();
  launch_ = &launch;
}

Watch::~Watch() {
  std::lock_guard lock(watchdog->mutex);
  std::erase_if(watchdog->launches, [&](const Watched& w) { return w.launch == launch_; });
  if (watchdog->launches.empty() && watchdog->handles_interrupt) give_back_interrupts();
}

}  // namespace cudacpu
