// Ends the program when a call of the runtime fails.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                 \
  do {                                                                              \
    cudaError_t code = (call);                                                      \
    if (code != cudaSuccess) {                                                      \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code)); \
      exit(3);                                                                      \
    }                                                                               \
  } while (0)
