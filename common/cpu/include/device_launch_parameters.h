// threadIdx and the other built-in variables: the front door has them.
#pragma once
#include <cuda_runtime.h>
