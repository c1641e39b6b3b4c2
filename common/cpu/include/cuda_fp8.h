// fp8: NVIDIA's own header. Its host side is complete: types, conversions, operators.
#pragma once

// NVIDIA's header includes these two from its directory; ours have to come first.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include_next <cuda_fp8.h>
