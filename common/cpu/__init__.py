"""The CPU backend: the same .cu files, built by the host compiler and run without a GPU."""
