// Functions of device code: the front door has them.
#pragma once
#include <cuda_runtime.h>
