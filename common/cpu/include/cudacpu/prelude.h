// What nearly every day includes, compiled once and kept in the cache: with it, a day takes half
// the time (build_prelude in common/cpu/libraries.py).
#pragma once

#include "../../../cuda/torch.cuh"
