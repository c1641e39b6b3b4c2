// Empty: clang's headers for CUDA include it, and only toolkits with cuRAND have it.
