// The headers that nearly every day includes, compiled once and kept in the cache: with them, a day
// takes half the time (build_prelude in common/cpu/libraries.py).
#pragma once

#include "../../../cuda/torch.cuh"
