"""List the features that the CPU backend lacks, with the messages that refuse them.

A missing feature is refused when the file is built, with its line. It must never compile to
something that gives a wrong result.
"""

import re
from collections.abc import Container

# The functions of the CUDA runtime that the backend defines. A test compares this with the library.
_RUNTIME_API = """
    cudaGetLastError cudaPeekAtLastError cudaGetErrorName cudaGetErrorString
    cudaGetDeviceCount cudaGetDevice cudaSetDevice cudaGetDeviceProperties cudaDeviceGetAttribute
    cudaDeviceSynchronize cudaDeviceReset cudaDeviceGetLimit cudaDeviceSetLimit
    cudaDeviceGetStreamPriorityRange cudaDeviceCanAccessPeer cudaDeviceGetPCIBusId
    cudaDriverGetVersion cudaRuntimeGetVersion cudaMemGetInfo cudaSetDeviceFlags cudaGetDeviceFlags
    cudaChooseDevice cudaDeviceGetP2PAttribute cudaCtxResetPersistingL2Cache
    cudaInitDevice cudaDeviceSetCacheConfig cudaDeviceGetCacheConfig
    cudaDeviceGetSharedMemConfig cudaDeviceSetSharedMemConfig cudaFuncSetSharedMemConfig
    cudaMalloc cudaFree cudaMallocHost cudaHostAlloc cudaFreeHost cudaMallocManaged
    cudaMallocAsync cudaFreeAsync cudaHostRegister cudaHostUnregister cudaHostGetDevicePointer
    cudaMallocPitch cudaMemcpy cudaMemcpyAsync cudaMemcpy2D cudaMemcpy2DAsync cudaMemset
    cudaMemsetAsync cudaMemset2D cudaMemset2DAsync cudaMemcpyToSymbol cudaMemcpyFromSymbol
    cudaMemcpyToSymbolAsync cudaMemcpyFromSymbolAsync cudaGetSymbolAddress cudaGetSymbolSize
    cudaPointerGetAttributes cudaMemPrefetchAsync cudaMemAdvise
    cudaMalloc3D cudaMemset3D cudaMemset3DAsync cudaMemcpy3D cudaMemcpy3DAsync
    cudaMallocArray cudaMalloc3DArray cudaFreeArray cudaArrayGetInfo
    cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync cudaMemcpy2DFromArray cudaMemcpy2DFromArrayAsync
    cudaMemcpyToArray cudaMemcpyToArrayAsync cudaMemcpyFromArray cudaMemcpyFromArrayAsync
    cudaMemcpyArrayToArray cudaMemcpy2DArrayToArray cudaCreateChannelDesc cudaGetChannelDesc
    cudaCreateTextureObject cudaDestroyTextureObject cudaGetTextureObjectResourceDesc
    cudaGetTextureObjectTextureDesc cudaGetTextureObjectResourceViewDesc
    cudaCreateSurfaceObject cudaDestroySurfaceObject cudaGetSurfaceObjectResourceDesc
    cudaMemcpyPeer cudaMemcpyPeerAsync cudaDeviceEnablePeerAccess cudaDeviceDisablePeerAccess
    cudaDeviceGetDefaultMemPool cudaDeviceGetMemPool cudaDeviceSetMemPool cudaMemPoolCreate
    cudaMemPoolDestroy cudaMemPoolGetAttribute cudaMemPoolSetAttribute cudaMemPoolTrimTo
    cudaMemPoolSetAccess cudaMemPoolGetAccess
    cudaMallocFromPoolAsync cudaIpcGetMemHandle cudaIpcOpenMemHandle cudaIpcCloseMemHandle
    cudaProfilerStart cudaProfilerStop
    cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority cudaStreamDestroy
    cudaStreamSynchronize cudaStreamQuery cudaStreamWaitEvent cudaStreamGetPriority
    cudaStreamGetFlags cudaStreamGetId cudaStreamAddCallback cudaLaunchHostFunc
    cudaStreamSetAttribute cudaStreamCopyAttributes cudaStreamAttachMemAsync
    cudaStreamBeginCapture cudaStreamEndCapture cudaStreamIsCapturing cudaStreamGetCaptureInfo
    cudaThreadExchangeStreamCaptureMode
    cudaGraphCreate cudaGraphDestroy cudaGraphClone cudaGraphNodeFindInClone
    cudaGraphAddKernelNode cudaGraphAddMemcpyNode cudaGraphAddMemcpyNode1D cudaGraphAddMemsetNode
    cudaGraphAddHostNode
    cudaGraphAddEmptyNode cudaGraphAddChildGraphNode cudaGraphChildGraphNodeGetGraph
    cudaGraphAddMemAllocNode cudaGraphAddMemFreeNode cudaGraphMemAllocNodeGetParams
    cudaGraphMemFreeNodeGetParams cudaDeviceGraphMemTrim cudaDeviceGetGraphMemAttribute
    cudaDeviceSetGraphMemAttribute
    cudaGraphAddDependencies cudaGraphGetNodes cudaGraphGetRootNodes cudaGraphGetEdges
    cudaGraphNodeGetType cudaGraphKernelNodeGetParams cudaGraphKernelNodeSetParams
    cudaGraphDebugDotPrint cudaGraphInstantiate cudaGraphInstantiateWithFlags
    cudaGraphUpload cudaGraphLaunch cudaGraphExecDestroy cudaGraphExecUpdate
    cudaGraphExecKernelNodeSetParams cudaGraphExecMemcpyNodeSetParams1D
    cudaGraphExecMemsetNodeSetParams cudaGraphExecHostNodeSetParams
    cudaGraphNodeSetEnabled cudaGraphNodeGetEnabled
    cudaEventCreate cudaEventCreateWithFlags cudaEventDestroy cudaEventRecord
    cudaEventRecordWithFlags cudaEventSynchronize cudaEventQuery cudaEventElapsedTime
    cudaFuncSetAttribute cudaFuncGetAttributes cudaFuncSetCacheConfig
    cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxPotentialBlockSize
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    cudaOccupancyMaxPotentialBlockSizeVariableSMem cudaOccupancyAvailableDynamicSMemPerBlock
    cudaOccupancyMaxPotentialClusterSize cudaOccupancyMaxActiveClusters
    cudaLaunchKernel cudaLaunchKernelEx cudaLaunchCooperativeKernel
    cudaGridDependencySynchronize cudaTriggerProgrammaticLaunchCompletion
"""
RUNTIME_API = frozenset(_RUNTIME_API.split())

# Functions that NVIDIA's headers define themselves.
_INLINE = frozenset(f"cudaCreateChannelDescHalf{n}" for n in ("", "1", "2", "4"))

# Those that CUDA 13 has removed (cudacpu/cuda12.h).
_EARLIER = ("cudaThreadSynchronize", "cudaThreadExit")

# Names that look like calls of the runtime but are types.
_TYPES = (
    *("cudaDeviceProp", "cudaExtent", "cudaPos", "cudaPitchedPtr", "cudaFuncAttributes"),
    *("cudaPointerAttributes", "cudaLaunchAttribute", "cudaMemcpy3DParms", "cudaUUID"),
    *("cudaDeviceAttr", "cudaError", "cudaMemcpyKind", "cudaFuncCache", "cudaLimit"),
    *("cudaArray", "cudaResourceDesc", "cudaTextureDesc", "cudaChannelFormatDesc"),
)

_RUNTIME_CALL = re.compile(r"cuda[A-Z]\w*")
_DRIVER_CALL = re.compile(
    r"cu(?:Init|Device|Ctx|Mem|Module|Library|Kernel|Func|Launch|Stream|Event|Graph|Tensor"
    r"|Tex|Surf|Array|Link|Occupancy|Get(?:Proc|Error))\w*"
)
_TEXTURE = re.compile(
    r"tex(?:1D|2D|3D|Cubemap)\w*|surf(?:1D|2D|3D|Cubemap)\w*"
    r"|cuda\w*(?:Mipmapped|ArraySparse|ArrayGetPlane)\w*"
)
_TEXTURES = frozenset(
    f"tex{name}" for name in ("1Dfetch", "1D", "2D", "3D", "1DLayered", "2DLayered")
) | frozenset(
    f"surf{name}{access}"
    for name in ("1D", "2D", "3D", "1DLayered", "2DLayered")
    for access in ("read", "write")
)

# Of CUDA until 11: textures and surfaces as variables at file scope.
_REFERENCE_CALL = re.compile(
    r"cuda(?:Bind|Unbind)(?:Texture|Surface)\w*"
    r"|cudaGet(?:Texture|Surface)(?:Reference|AlignmentOffset)"
)

_HEADERS = {
    "cub/": "CUB",
    "thrust/": "Thrust",
    "cutlass/": "CUTLASS",
    "cute/": "CuTe",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cufft": "cuFFT",
    "curand": "cuRAND",
    "cusolver": "cuSOLVER",
    "cusparse": "cuSPARSE",
    "nccl": "NCCL",
    "nvrtc": "NVRTC",
    "cuda_awbarrier.h": "nvcuda::experimental::awbarrier",
    "crt/": "a compiler-internal CUDA header",
    "cuda_fp6.h": "fp6",
    "cuda_fp4.h": "fp4",
}


# Those whose algorithms can run in host code, once this macro has chosen how.
_HOST_BACK_END = {"thrust/": "THRUST_DEVICE_SYSTEM"}

# What to use instead of some of them.
_INSTEAD = {
    "cub/": "of it, whole programs have the headers in common/cpu/vendor/cub",
    "curand": "common/cuda/philox.cuh has Philox, uniform and normal numbers",
    "cuda_awbarrier.h": "cuda_awbarrier_primitives.h and <cuda/barrier> are",
}

# The headers of libcu++'s namespace cuda that exist here, and those of cuda::std that do not.
_LIBCUDACXX = frozenset(
    f"cuda/{name}"
    for name in ("atomic", "barrier", "pipeline", "bit", "cmath", "functional", "numeric")
)
_LIBCUDACXX_STD_MISSING = frozenset(
    f"cuda/std/{name}" for name in ("barrier", "latch", "semaphore")
)


def _missing_libcudacxx(path: str) -> str | None:
    """Return why this header of libcu++ cannot be used, or None."""
    present = path.startswith("cuda/std/") and path not in _LIBCUDACXX_STD_MISSING
    if present or path in _LIBCUDACXX:
        return None
    what = f"<{path}> of libcu++ is not available on the CPU backend"
    if path == "cuda/ptx":
        return f"{what}; common/cuda/ptx.cuh has wrappers of PTX instructions"
    return f"{what}; it has {', '.join(sorted(_LIBCUDACXX))}"


def missing_header(path: str, defined: Container[str] = ()) -> str | None:
    """Return why `#include <path>` cannot be used on the CPU backend with these macros defined, or
    None."""
    if path.startswith("cuda/"):
        return _missing_libcudacxx(path)
    for prefix, feature in _HEADERS.items():
        if path.startswith(prefix) and _HOST_BACK_END.get(prefix) not in defined:
            instead = f"; {_INSTEAD[prefix]}" if prefix in _INSTEAD else ""
            return f"{feature} is not available on the CPU backend{instead}"
    return None


def missing_name(word: str, *, called: bool, template: bool) -> str | None:
    """Return why this identifier cannot be used on the CPU backend, or None.

    called: a parenthesis follows it; template: an opening angle bracket does.
    """
    if (template and word in ("texture", "surface")) or (
        called and _REFERENCE_CALL.fullmatch(word)
    ):
        return (
            f"{word}: CUDA 12 has removed references to textures and surfaces; "
            "use cudaTextureObject_t and cudaSurfaceObject_t"
        )
    if (called or template) and word not in _TEXTURES and _TEXTURE.fullmatch(word):
        return (
            f"{word}: cubemaps, mipmaps, gathers and sparse textures are not modelled on the CPU "
            "backend"
        )
    if called and word.startswith("cuTensorMapEncode"):
        return f"{word}(): use ptx::make_tensor_map (common/cuda/ptx.cuh) on the CPU backend"
    known = (
        word in RUNTIME_API
        or word in _INLINE
        or word in (*_TYPES, *_EARLIER)
        or word.endswith("_t")
    )
    if called and not known and _RUNTIME_CALL.fullmatch(word):
        return f"{word}() is not part of the CUDA runtime that the CPU backend provides"
    if called and _DRIVER_CALL.fullmatch(word):
        return f"{word}(): the CUDA driver API is not available on the CPU backend"
    return None
