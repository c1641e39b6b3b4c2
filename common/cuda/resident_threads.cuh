// The threads that one multiprocessor keeps resident (taught in day 21).
#pragma once

// By compute capability.
#if __CUDA_ARCH__ == 750
constexpr int RESIDENT_THREADS = 1024;
#elif (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1100
constexpr int RESIDENT_THREADS = 1536;
#else  // 8.0, 9.0, 10.0
constexpr int RESIDENT_THREADS = 2048;
#endif
