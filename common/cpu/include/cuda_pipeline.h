// The old home of the pipeline primitives. Its nvcuda::experimental::pipeline is not here:
// cuda::pipeline is (<cuda/pipeline>).
#pragma once

#include "cuda_pipeline_primitives.h"
