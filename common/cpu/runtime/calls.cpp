// The second half of the runtime library, as one translation unit: CUDA's runtime API, and reports
// of what went wrong. It is compiled with less optimisation than kernels.cpp.
#include "faults.cpp"
#include "report.cpp"
#include "names.cpp"
#include "print.cpp"
#include "errors.cpp"
#include "device.cpp"
#include "pytorch.cpp"
#include "device_pages.cpp"
#include "memory.cpp"
#include "memory_pool.cpp"
#include "volume.cpp"
#include "shared_between_processes.cpp"
#include "stream.cpp"
#include "deferred.cpp"
#include "graph.cpp"
#include "kernel_node.cpp"
#include "executable_graph.cpp"
#include "capture.cpp"
#ifdef CUDACPU_TRACE
#include "trace_report.cpp"
#endif
