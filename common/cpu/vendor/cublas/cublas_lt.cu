// cuBLASLt on the CPU backend. See cublasLt.h.
#include "cublasLt.h"

#include "gemm.cuh"
#include "handle.cuh"

#include <cstring>

using namespace cudacpu_blas;

struct cublasLtMatmulDescOpaque {
  cublasComputeType_t compute;
  cudaDataType scale;
  int32_t pointers = CUBLAS_POINTER_MODE_HOST;
  int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N, transc = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // that of D
  void* aux = nullptr;
  int64_t aux_ld = 0, aux_stride = 0, bias_stride = 0;
};

struct cublasLtMatrixLayoutOpaque {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batches = 1;
  int64_t stride = 0;
  int32_t order = CUBLASLT_ORDER_COL;
};

struct cublasLtMatmulPreferenceOpaque {};

namespace {

// Copy an attribute of exactly this size.
template <class T>
cublasStatus_t take(T& into, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&into, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

struct Call {
  const cublasLtMatmulDescOpaque* desc;
  const void *alpha, *a, *b, *beta, *c;
  void* d;
  const cublasLtMatrixLayoutOpaque *la, *lb, *lc, *ld;
  cudaStream_t stream;
};

// Read the epilogue of a call. Return false if it is not provided.
bool epilogue_of(const Call& call, Epilogue& epilogue) {
  const auto& desc = *call.desc;
  const auto chosen = desc.epilogue;
  if (chosen & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) return false;
  if (chosen & CUBLASLT_EPILOGUE_BIAS && chosen != CUBLASLT_EPILOGUE_DGELU) {
    if (!desc.bias || desc.bias_stride != 0) return false;
    epilogue.bias = desc.bias;
    epilogue.bias_type =
        desc.bias_type < 0 ? call.ld->type : static_cast<cudaDataType>(desc.bias_type);
  }
  epilogue.aux_ld = desc.aux_ld;
  epilogue.aux_stride = desc.aux_stride;
  switch (chosen) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
      return true;
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
      epilogue.activation = Activation::kRelu;
      return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      epilogue.aux = desc.aux;
      [[fallthrough]];
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      epilogue.activation = Activation::kGelu;
      return true;
    case CUBLASLT_EPILOGUE_DGELU:
      epilogue.aux = desc.aux;
      epilogue.activation = Activation::kGeluGradient;
      return desc.aux != nullptr;
    default:
      return false;
  }
}

template <class In, class Out, class Scale>
cublasStatus_t matmul(const Call& call) {
  const auto& desc = *call.desc;
  Epilogue epilogue;
  if (!epilogue_of(call, epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool ta = desc.transa != CUBLAS_OP_N, tb = desc.transb != CUBLAS_OP_N;
  const auto m = static_cast<int64_t>(call.ld->rows), n = static_cast<int64_t>(call.ld->cols);
  const auto k = static_cast<int64_t>(ta ? call.la->rows : call.la->cols);
  const auto is = [](uint64_t size, int64_t expected) {
    return static_cast<int64_t>(size) == expected;
  };
  if (!is(ta ? call.la->cols : call.la->rows, m) || !is(tb ? call.lb->cols : call.lb->rows, k) ||
      !is(tb ? call.lb->rows : call.lb->cols, n) || !is(call.lc->rows, m) || !is(call.lc->cols, n))
    return CUBLAS_STATUS_INVALID_VALUE;
  const int batches = call.ld->batches;
  if (call.la->batches != batches || call.lb->batches != batches || call.lc->batches != batches)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto mode = static_cast<cublasPointerMode_t>(desc.pointers);
  const Product<In, Out, Scale> product{
      m,
      n,
      k,
      ta,
      tb,
      scalar<Scale>(mode, call.alpha),
      scalar<Scale>(mode, call.beta),
      {static_cast<const In*>(call.a), call.la->ld, call.la->stride},
      {static_cast<const In*>(call.b), call.lb->ld, call.lb->stride},
      {static_cast<const Out*>(call.c), call.lc->ld, call.lc->stride},
      {static_cast<Out*>(call.d), call.ld->ld, call.ld->stride},
      epilogue};
  return multiply(product, batches, call.stream);
}

cublasStatus_t matmul_of(const Call& call) {
  const cudaDataType in = call.la->type, out = call.ld->type, scale = call.desc->scale;
  const bool plain = call.la->order == CUBLASLT_ORDER_COL && call.lb->order == CUBLASLT_ORDER_COL &&
                     call.lc->order == CUBLASLT_ORDER_COL && call.ld->order == CUBLASLT_ORDER_COL;
  if (!plain || call.lb->type != in || call.lc->type != out || call.desc->transc != CUBLAS_OP_N)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (in == CUDA_R_64F && out == in && scale == in) return matmul<double, double, double>(call);
  if (in == CUDA_R_16F && out == in && scale == in) return matmul<__half, __half, __half>(call);
  if (in == CUDA_R_8I && out == CUDA_R_32I && scale == out) return matmul<int8_t, int, int>(call);
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (in == CUDA_R_32F && out == in) return matmul<float, float, float>(call);
  if (in == CUDA_R_16F && out == in) return matmul<__half, __half, float>(call);
  if (in == CUDA_R_16F && out == CUDA_R_32F) return matmul<__half, float, float>(call);
  if (in == CUDA_R_16BF && out == in) return matmul<__nv_bfloat16, __nv_bfloat16, float>(call);
  if (in == CUDA_R_16BF && out == CUDA_R_32F) return matmul<__nv_bfloat16, float, float>(call);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return cublasCreate(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return cublasDestroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType scale_type) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = new cublasLtMatmulDescOpaque{compute, scale_type};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return take(desc->compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return take(desc->scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return take(desc->pointers, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(desc->transa, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(desc->transb, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return take(desc->transc, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return take(desc->bias_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(desc->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(desc->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return take(desc->aux_stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque{type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return take(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return take(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return take(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return take(layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return take(layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return take(layout->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return take(layout->stride, value, bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
  *preference = new cublasLtMatmulPreferenceOpaque;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
// There is one algorithm, and it needs no workspace.
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void* value, size_t) {
  return preference && value ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !a || !b || !c || !d || !preference || requested < 1 || !results || !returned)
    return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {{}, 0, CUBLAS_STATUS_SUCCESS, 1.0f, {}};
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*,
                              size_t, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !beta || !a || !b || !d || !a_layout || !b_layout || !c_layout ||
      !d_layout)
    return CUBLAS_STATUS_INVALID_VALUE;
  return matmul_of({desc, alpha, a, b, beta, c, d, a_layout, b_layout, c_layout, d_layout, stream});
}

}  // extern "C"
