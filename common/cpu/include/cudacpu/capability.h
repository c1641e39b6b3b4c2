// Features that not every card has: refused at run time where the model's card lacks them.
#pragma once

#include "cudacpu/thread.h"

namespace cudacpu {

extern int compute_capability;  // of the model that is played: 86 for 8.6
[[noreturn]] void trap_lacking(const char* feature, int capability, Site site);

// End the launch, naming the feature, on a card of less than this compute capability (80 for 8.0).
inline void needs_capability(int capability, const char* feature, Site site) {
  if (compute_capability < capability) [[unlikely]]
    trap_lacking(feature, capability, site);
}

}  // namespace cudacpu
