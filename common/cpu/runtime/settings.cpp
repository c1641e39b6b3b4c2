// Settings of the process that runs kernels; backend.py calls these functions.
#include "runtime.h"

#include <thread>

namespace cudacpu {

Settings& settings() {
  static Settings& instance = *[] {
    auto* fresh = new Settings;
    fresh->threads = std::max(1u, std::thread::hardware_concurrency());
    return fresh;
  }();
  return instance;
}

}  // namespace cudacpu

extern "C" {

void cudacpu_set_schedule(int threads, int blocks, int completion, uint32_t seed) {
  cudacpu::settings().schedule =
      cudacpu::Schedule{static_cast<cudacpu::Order>(threads), static_cast<cudacpu::Order>(blocks),
                        static_cast<cudacpu::Completion>(completion), seed};
}

void cudacpu_set_threads(unsigned threads) {
  cudacpu::settings().threads = std::max(1u, threads);
}

void cudacpu_set_time_limit(double seconds) {
  cudacpu::settings().time_limit = seconds;
}

void cudacpu_set_spin_limit(double seconds) {
  cudacpu::settings().spin_limit = seconds;
}

void cudacpu_set_stuck_limit(double seconds) {
  cudacpu::settings().stuck_limit = seconds;
}

void cudacpu_set_progress_after(double seconds) {
  cudacpu::settings().progress_after = seconds;
}

void cudacpu_set_strict_barriers(int on) {
  cudacpu::settings().strict_barriers = on;
}

void cudacpu_set_masks(int masks) {
  cudacpu::settings().masks = static_cast<cudacpu::Masks>(masks);
}

void cudacpu_set_prints(int prints) {
  cudacpu::settings().prints = static_cast<cudacpu::Prints>(prints);
}

void cudacpu_set_asserts_lose_context(int on) {
  cudacpu::settings().asserts_lose_context = on;
}

void cudacpu_set_writes_beyond_throw(int on) {
  cudacpu::settings().writes_beyond_throw = on;
}

}  // extern "C"
