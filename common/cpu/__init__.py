"""The CPU backend: builds the same .cu files with the host compiler and runs them on the CPU."""
