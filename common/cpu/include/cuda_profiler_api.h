// cudaProfilerStart and cudaProfilerStop, which do nothing here. (NVIDIA's header is not in the
// packages that the backend takes its headers from.)
#pragma once

#include <cuda_runtime.h>

extern "C" {
cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
}
