// `__device__` variables of a program lie in sections of their own, which program.cpp begins and
// ends at pages and the runtime closes to host code (device_pages.cpp). In the address build they
// do not: the compiler watches no variable in a section that it did not choose.
#pragma once

#if defined(CUDACPU_PROGRAM_MODEL) && !defined(CUDACPU_ADDRESS) && !defined(__clang__)
#define CUDACPU_DEVICE_VALUE __attribute__((section("cudacpu_device")))
// Without a value, a variable takes no room in the file. Only the name of the section can tell the
// assembler that; what g++ appends to it becomes a comment.
#define CUDACPU_DEVICE_VARIABLE __attribute__((section("cudacpu_device_zero,\"aw\",@nobits\n#")))
#else
#define CUDACPU_DEVICE_VALUE
#define CUDACPU_DEVICE_VARIABLE
#endif
