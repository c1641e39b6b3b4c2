// The front door of the CPU backend: what every `.cu` file sees first.
//
// Types, enumerations and the declarations of the runtime API are NVIDIA's own, so that signatures
// and names are the real ones; the runtime library of this backend defines the functions. Without
// __CUDACC__, those headers declare nothing for device code: that part is here.
#pragma once

#include "cudacpu/symbols.h"  // before the declarations

#include_next <cuda_runtime.h>

#define CUDA_ON_CPU 1

#ifdef __cplusplus  // a program may have files in C

#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>

// NVIDIA's headers have made __global__, __device__, __host__, __constant__ and their like empty.
// Launch bounds and cluster extents are read by the rewriter, which hands them to CUDACPU_ENTRY.
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __block_size__
#define __block_size__(...)

#include "cudacpu/cuda12.h"

// A program's files without the suffix .cu see the parts of NVIDIA's header that are for any
// compiler, as with nvcc: they may define names such as umin themselves.
#ifndef CUDACPU_HOST_FILE

#include "cudacpu/thread.h"
#include "cudacpu/trace.h"

#include "cudacpu/api.h"
#include "cudacpu/assume.h"
#include "cudacpu/atomic.h"
#include "cudacpu/cluster.h"
#include "cudacpu/convert.h"
#include "cudacpu/device_variable.h"
#include "cudacpu/integer.h"
#include "cudacpu/launch.h"
#include "cudacpu/math.h"
#include "cudacpu/memory.h"
#include "cudacpu/print.h"
#include "cudacpu/pytorch.h"
#include "cudacpu/rounding.h"
#include "cudacpu/shared.h"
#include "cudacpu/simd.h"
#include "cudacpu/sync.h"
#include "cudacpu/texture.h"
#include "cudacpu/warp.h"

#endif
#endif
