// The CPU bodies of the PTX wrappers (common/cuda/ptx), as far as kernels see them.
//
// ldmatrix, mma and their like are warp collectives (warp.h): the last lane to arrive computes for
// the warp.
#pragma once

#include <cuda_runtime.h>

namespace cudacpu {

// Read the first and last bytes that a copy is going to read or write: an address that does not
// exist faults here, where the message can name the line. The checks of accesses see the copy as a
// whole, not these reads.
#if defined(CUDACPU_ADDRESS)
void check_access(const void* address, size_t bytes, bool write, Site site);
__attribute__((always_inline)) inline void touch(const void* memory, int bytes, bool write,
                                                 Site site) {
  if (bytes > 0) check_access(memory, static_cast<size_t>(bytes), write, site);
#else
__attribute__((no_sanitize("thread"))) inline void touch(const void* memory, int bytes, bool,
                                                         Site) {
#endif
  if (bytes <= 0) return;
  auto ends = static_cast<const volatile char*>(memory);
  static_cast<void>(ends[0]), static_cast<void>(ends[bytes - 1]);
}

// ------------------------------------------------------------------ async_copy.cpp

// Queue a copy of the running thread: `valid` bytes of `from`, and zeros up to `bytes`.
void queue_copy(void* to, const void* from, int bytes, int valid, Site site);

inline void start_copy(void* to, const void* from, int bytes, int valid, Site site) {
  touch(from, valid, false, site);
  queue_copy(to, from, bytes, valid, site);
}
// Queue a copy for a group's memcpy_async: up to 16 bytes with any alignment, from global to shared
// memory.
void queue_group_copy(void* to, const void* from, size_t bytes, Site site);

inline void start_group_copy(void* to, const void* from, size_t bytes, Site site) {
  touch(from, static_cast<int>(bytes), false, site);
  queue_group_copy(to, from, bytes, site);
}
void commit_copies();
// Perform the queued copies of the running thread, but those of its `n` youngest groups.
void wait_for_copies(unsigned n);

// ------------------------------------------------------------------ mbarrier.cpp

void mbarrier_init(uint64_t* barrier, int arrivals, Site site);
void mbarrier_invalidate(uint64_t* barrier, Site site);
// Arrive once, after `bytes` more have become due.
void mbarrier_arrive(uint64_t* barrier, int bytes, Site site);
// Arrive several times; if it `drops`, one arrival fewer is needed from the next phase on. Return
// the parity of the phase that the arrivals are for.
int mbarrier_arrive_many(uint64_t* barrier, int arrivals, bool drops, const char* what, Site site);
// Make `bytes` more due, with no arrival.
void mbarrier_expect_bytes(uint64_t* barrier, int bytes, Site site);
// Arrive once, when the queued copies of the running thread have taken place: one of the arrivals
// that the phase needs, or, if it `is_extra`, an additional one.
void arrive_after_copies(uint64_t* barrier, bool is_extra, Site site);
inline void arrive_after_copies(uint64_t* barrier, Site site) {
  arrive_after_copies(barrier, false, site);
}
// what: the name of the call, for messages.
bool mbarrier_test(uint64_t* barrier, int parity, const char* what, Site site);
inline bool mbarrier_test(uint64_t* barrier, int parity, Site site) {
  return mbarrier_test(barrier, parity, "mbarrier.test_wait", site);
}
void mbarrier_wait(uint64_t* barrier, int parity, const char* what, Site site);
inline void mbarrier_wait(uint64_t* barrier, int parity, Site site) {
  mbarrier_wait(barrier, parity, "mbarrier.try_wait", site);
}

// Arrive at the mbarrier of block `rank` of the cluster that corresponds to this one.
void mbarrier_arrive_at_rank(uint64_t* barrier, uint32_t rank, int bytes, Site site);
// Queue a store of a word, and 4 bytes for an mbarrier, both in the same block of the cluster.
void queue_async_store(uint32_t* to, uint32_t value, uint64_t* barrier, Site site);

// Queue a copy of the running block's shared memory to the same cluster's block `rank`.
void queue_copy_to_rank(void* to, uint32_t rank, const void* from, int bytes, uint64_t* barrier,
                        Site site);

// Queue a copy by TMA.
void queue_bulk_copy(void* to, const void* from, int bytes, uint64_t* barrier, Site site);

inline void start_bulk_copy(void* to, const void* from, int bytes, uint64_t* barrier, Site site) {
  touch(from, bytes, false, site);
  queue_bulk_copy(to, from, bytes, barrier, site);
}

// ------------------------------------------------------------------ bulk_store.cpp

// Queue a store of the running block's shared memory by TMA.
void queue_flat_store(void* to, const void* from, int bytes, Site site);
void commit_stores();
void wait_for_stores(unsigned n, bool only_read);

inline void start_flat_store(void* to, const void* from, int bytes, Site site) {
  touch(to, bytes, true, site);
  queue_flat_store(to, from, bytes, site);
}

// ------------------------------------------------------------------ operations of a whole warp

// The values of a lane for an operation that takes all 32 lanes; each operation adds more.
struct WholeWarp {
  uint32_t arrived = 0;  // the lanes that took part: without all of them there is no result
};
[[noreturn]] void trap_incomplete_warp(const char* name, uint32_t arrived, Site site);

template <class Exchange>
void collect_warp(const Operation& operation, Exchange& exchange, Site site) {
  collect(0xffffffffu, operation, static_cast<WholeWarp*>(&exchange), site);
  if (exchange.arrived != 0xffffffffu) [[unlikely]]
    trap_incomplete_warp(operation.name, exchange.arrived, site);
}

// ------------------------------------------------------------------ named_barrier.cpp

void named_barrier_sync(int id, int threads, Site site);
void named_barrier_arrive(int id, int threads, Site site);

// ------------------------------------------------------------------ tensor_core.cpp

struct MatrixLoad : WholeWarp {
  const void* row;      // the one that this lane passes
  uint32_t* registers;  // of this lane, one for each matrix
};
extern const Operation kLoadMatrix1, kLoadMatrix2, kLoadMatrix4, kLoadMatrix1Transposed,
    kLoadMatrix2Transposed, kLoadMatrix4Transposed;

[[noreturn]] void trap_matrix_row(const char* name, const void* row, Site site);

// Return true if this lane's row is one of those that are moved. Trap if it is, and cannot be.
inline bool has_matrix_row(const Operation& operation, unsigned matrices, const void* row,
                           Site site) {
  bool used = current->lane < 8 * matrices;
  if (used && (reinterpret_cast<uintptr_t>(row) % 16 != 0 || !__isShared(row))) [[unlikely]]
    trap_matrix_row(operation.name, row, site);
  return used;
}

inline void load_matrices(const Operation& operation, unsigned matrices, uint32_t* registers,
                          const void* row, Site site) {
  if (has_matrix_row(operation, matrices, row, site)) trace_read(row, 16, site);
  MatrixLoad exchange{{}, row, registers};
  collect_warp(operation, exchange, site);
}

struct MatrixStore : WholeWarp {
  void* row;
  const uint32_t* registers;
};
extern const Operation kStoreMatrix1, kStoreMatrix2, kStoreMatrix4, kStoreMatrix1Transposed,
    kStoreMatrix2Transposed, kStoreMatrix4Transposed;

inline void store_matrices(const Operation& operation, unsigned matrices, void* row,
                           const uint32_t* registers, Site site) {
  if (has_matrix_row(operation, matrices, row, site)) trace_write(row, 16, site);
  MatrixStore exchange{{}, row, registers};
  collect_warp(operation, exchange, site);
}

struct MatrixMove : WholeWarp {
  uint32_t word;
};
extern const Operation kMoveMatrix;

inline uint32_t transpose_matrix(uint32_t word, Site site) {
  MatrixMove exchange{{}, word};
  collect_warp(kMoveMatrix, exchange, site);
  return exchange.word;
}

struct MatrixProduct : WholeWarp {
  const uint32_t *a, *b;
  const void* c;
  void* d;
};
extern const Operation kMmaHalf, kMmaHalfSums, kMmaBfloat16, kMmaTf32, kMmaInt8, kMmaUint8;
const Operation& fp8_product(bool a_is_e4m3, bool b_is_e4m3, bool half_sums);

inline void multiply_matrices(const Operation& operation, void* d, const uint32_t* a,
                              const uint32_t* b, const void* c, Site site) {
  MatrixProduct exchange{{}, a, b, c, d};
  collect_warp(operation, exchange, site);
}

// ------------------------------------------------------------------ wgmma.cpp

// Types of elements, by their PTX names.
enum class MatrixType : uint8_t { f16, bf16, tf32, e4m3, e5m2 };

// The operands of a wgmma: d (64 x n) = ±a·b, + d if `accumulate`.
struct Wgmma {
  unsigned n;
  MatrixType type_a, type_b;
  bool a_is_mn_major, b_is_mn_major;
  bool negative;
  bool accumulate;
  bool a_in_registers;
  uint64_t a, b;  // descriptors, as on a GPU
};
// Issue it; d and a (if it is in registers) are those of the running thread.
void start_wgmma(const Wgmma& instruction, float* d, const uint32_t* a, Site site);
void wgmma_fence(Site site);
void commit_wgmma(Site site);
// Wait for all committed groups of the warp but the `n` youngest.
void wait_for_wgmma(unsigned n, Site site);

void set_max_registers(const char* what, int registers, Site site);

// ------------------------------------------------------------------

inline uint32_t round_to_tf32(float x) {
  uint32_t word = bits<uint32_t>(x);
  bool finite = (word & 0x7f800000u) != 0x7f800000u;
  if (finite) word += 0x1000u;  // half of the last place that stays
  return finite || (word & 0x7fffffu) == 0 ? word & 0xffffe000u : 0x7fffe000u;
}

}  // namespace cudacpu
