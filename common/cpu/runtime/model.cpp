// The card that is played: its limits, and what it lacks.
#include "runtime.h"

#include <string_view>

#include <cudacpu/capability.h>

namespace cudacpu {

namespace {

constexpr const Model* find(const char* name) {
  for (const Model& model : kModels)
    if (std::string_view(model.name) == name) return &model;
  return nullptr;
}
static_assert(find(kDefaultModel), "the default is a model");

std::atomic<const Model*> played{find(kDefaultModel)};

// A card like the one that is played, but so small that small inputs take the paths of large ones:
// loops over what is left when the grid is full, rows that shared memory cannot hold.
Model small_card;
std::atomic<bool> plays_small{false};

constexpr int kSmallMultiprocessors = 2;
constexpr int kSmallThreads = 1024;  // one block of the largest size
constexpr size_t kSmallShared = 2 * kKiB;
constexpr int kSmallGridY = 3;
constexpr int kGridY = 65535;

std::string text_of(int capability) {
  return format("%d.%d", capability / 10, capability % 10);
}

// Trap for a feature that only one architecture has, in its a-variant.
[[noreturn]] void trap_specific(const char* feature, const char* which, Site site) {
  trap(site, "%s needs compute capability %s; %s has %s", feature, which, device_name().c_str(),
       model().name);
}

}  // namespace

int compute_capability = find(kDefaultModel)->capability;

const Model& model() {
  return *played.load(std::memory_order_relaxed);
}

size_t most_shared() {
  return std::max(model().shared_opt_in, kSharedDefault);
}

int max_grid_y() {
  return plays_small.load() ? kSmallGridY : kGridY;
}

std::string device_name() {
  return format("CPU backend (model %s)", model().name);
}

void trap_lacking(const char* feature, int capability, Site site) {
  const std::string needed = text_of(capability);
  trap(site,
       "%s needs compute capability %s; %s has %s\n"
       "  a launcher says so before it launches: require_capability(%d, %d, …) of "
       "common/cuda/capability.cuh",
       feature, needed.c_str(), device_name().c_str(), model().name, capability / 10,
       capability % 10);
}

void needs_wgmma(const char* feature, Site site) {
  if (compute_capability != 90) trap_specific(feature, "9.0a, and no other has it", site);
}

void needs_setmaxnreg(const char* feature, Site site) {
  if (compute_capability < 90) trap_specific(feature, "9.0a, 10.0a or 12.0a", site);
}

std::string as_negative(int64_t number) {
  return format("; as a signed number it is %lld: a negative size, or one that overflowed",
                static_cast<long long>(number));
}

std::string too_much_dynamic_shared(size_t bytes, size_t most) {
  const std::string text =
      format("dynamic shared memory of %zu bytes: compute capability %s allows %zu per block",
             bytes, model().name, most);
  const bool negative = bytes > size_t{INT64_MAX};
  return negative ? text + as_negative(static_cast<int64_t>(bytes)) : text;
}

std::string too_much_shared(size_t bytes, size_t most) {
  return format("%zu bytes of shared memory, where a block may have %zu on compute capability %s",
                bytes, most, model().name);
}

}  // namespace cudacpu

extern "C" {

// Set the model. Return 0 for a name that is no model's, and change nothing then.
int cudacpu_set_model(const char* name) {
  const cudacpu::Model* found = name ? cudacpu::find(name) : nullptr;
  if (!found) return 0;
  cudacpu::played = found;
  cudacpu::plays_small = false;
  cudacpu::compute_capability = found->capability;
  return 1;
}

// Make the card that is played a small one: few multiprocessors, little shared memory to opt in to
// unless `shared` is not 0, few blocks along y. cudacpu_set_model ends that.
void cudacpu_set_small(int shared) {
  using namespace cudacpu;
  if (plays_small) return;
  small_card = model();
  small_card.multiprocessors = kSmallMultiprocessors;
  small_card.threads = kSmallThreads;
  small_card.blocks = 1;
  if (!shared) small_card.shared_opt_in = kSmallShared;
  plays_small = true;
  played = &small_card;
}

}  // extern "C"
