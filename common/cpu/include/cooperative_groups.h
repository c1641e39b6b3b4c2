// Cooperative groups: sets of threads that synchronise and exchange values as one.
//
// The names, results and limits are those of NVIDIA's header. Groups within a warp (tiles,
// coalesced groups) are a mask of lanes, and all that they do is a warp collective; tiles of
// several warps have separate collectives (wide_tile.h); a block is __syncthreads; clusters and
// grids each have a barrier. Not here: barrier_arrive and barrier_wait of a grid.
#pragma once

#include <cuda_runtime.h>

#include "cudacpu/group_collectives.h"

namespace cooperative_groups {

namespace details {

enum class Kind : unsigned char { kGrid, kCluster, kBlock, kLanes };

inline unsigned thread_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
inline unsigned threads_of_block() {
  return blockDim.x * blockDim.y * blockDim.z;
}
inline unsigned long long block_in_grid() {
  return blockIdx.x + static_cast<unsigned long long>(gridDim.x) *
                          (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
}
inline unsigned long long blocks_of_grid() {
  return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
}
inline unsigned my_lane() {
  return cudacpu::current->lane;
}
// The lanes of a tile of `size` threads (a power of two, at most 32) around the caller's.
inline unsigned tile_mask(unsigned size) {
  return size == 32 ? ~0u : ((1u << size) - 1) << (my_lane() & ~(size - 1));
}

}  // namespace details

// Any group. It holds all that a group is, so that a function can take it by value.
class thread_group {
 public:
  void sync(CUDACPU_HERE) const {
    switch (kind_) {
      case details::Kind::kGrid:
        return cudacpu::sync_grid({file, line});
      case details::Kind::kCluster:
        cudacpu::arrive_at_cluster_barrier("cluster.sync()", {file, line});
        return cudacpu::wait_at_cluster_barrier("cluster.sync()", {file, line});
      case details::Kind::kBlock:
        cudacpu::sync_block("thread_block::sync", cudacpu::BarrierKind::kPlain, false,
                            {file, line});
        return;
      case details::Kind::kLanes:
        return cudacpu::collect(mask_, cudacpu::kSyncGroup, nullptr, {file, line});
    }
  }
  unsigned long long num_threads() const {
    switch (kind_) {
      case details::Kind::kGrid:
        return details::blocks_of_grid() * details::threads_of_block();
      case details::Kind::kCluster:
        return __clusterSizeInBlocks() * details::threads_of_block();
      case details::Kind::kBlock:
        return details::threads_of_block();
      default:
        return static_cast<unsigned>(__builtin_popcount(mask_));
    }
  }
  unsigned long long size() const { return num_threads(); }
  unsigned long long thread_rank() const {
    switch (kind_) {
      case details::Kind::kGrid:
        return details::block_in_grid() * details::threads_of_block() + details::thread_in_block();
      case details::Kind::kCluster:
        return __clusterRelativeBlockRank() * details::threads_of_block() +
               details::thread_in_block();
      case details::Kind::kBlock:
        return details::thread_in_block();
      default:
        return cudacpu::rank_of(details::my_lane(), mask_);
    }
  }

 protected:
  explicit thread_group(details::Kind kind, unsigned mask = 0, unsigned meta_rank = 0,
                        unsigned meta_size = 1)
      : kind_(kind), mask_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}

  details::Kind kind_;
  unsigned mask_;       // of lanes, if it is a part of a warp
  unsigned meta_rank_;  // which part of its parent it is
  unsigned meta_size_;  // of how many

  friend thread_group tiled_partition(const thread_group& parent, unsigned size, const char*, int);
};

// ---------------------------------------------------------------- the grid

class grid_group : public thread_group {
 public:
  grid_group() : thread_group(details::Kind::kGrid) {}
  // Return true if the kernel was launched cooperatively, so that sync() works.
  bool is_valid() const { return cudacpu::launched_cooperatively(); }
  unsigned long long block_rank() const { return details::block_in_grid(); }
  unsigned long long num_blocks() const { return details::blocks_of_grid(); }
  dim3 dim_blocks() const { return gridDim; }
  dim3 group_dim() const { return gridDim; }
  dim3 block_index() const { return blockIdx; }
};

inline grid_group this_grid() {
  return {};
}

// ---------------------------------------------------------------- the cluster

// The blocks that are resident together: one block, unless the launch or the kernel asks for more.
class cluster_group : public thread_group {
 public:
  struct arrival_token {};

  cluster_group() : thread_group(details::Kind::kCluster) {}

  static arrival_token barrier_arrive(CUDACPU_HERE) {
    cudacpu::arrive_at_cluster_barrier("cluster.barrier_arrive()", {file, line});
    return {};
  }
  static void barrier_wait(CUDACPU_HERE) {
    cudacpu::wait_at_cluster_barrier("cluster.barrier_wait()", {file, line});
  }
  static void barrier_wait(arrival_token&&, CUDACPU_HERE) { barrier_wait(file, line); }

  // The place in block `rank` of what is at `address` here.
  template <class T>
  static T* map_shared_rank(T* address, int rank, CUDACPU_HERE) {
    return static_cast<T*>(cudacpu::map_to_rank(address, static_cast<unsigned>(rank),
                                                "cluster.map_shared_rank()", {file, line}));
  }
  static unsigned query_shared_rank(const void* address, CUDACPU_HERE) {
    return cudacpu::rank_of_address(address, "cluster.query_shared_rank()", {file, line});
  }

  static dim3 block_index() { return __clusterRelativeBlockIdx(); }
  static unsigned block_rank() { return __clusterRelativeBlockRank(); }
  static dim3 dim_blocks() { return __clusterDim(); }
  static unsigned num_blocks() { return __clusterSizeInBlocks(); }
  static dim3 thread_index() {
    const dim3 block = __clusterRelativeBlockIdx();
    return {block.x * blockDim.x + threadIdx.x, block.y * blockDim.y + threadIdx.y,
            block.z * blockDim.z + threadIdx.z};
  }
  static dim3 dim_threads() {
    const dim3 dims = __clusterDim();
    return {dims.x * blockDim.x, dims.y * blockDim.y, dims.z * blockDim.z};
  }
};

inline cluster_group this_cluster() {
  return {};
}

// ---------------------------------------------------------------- the block

class thread_block : public thread_group {
 public:
  struct arrival_token {};

  thread_block() : thread_group(details::Kind::kBlock) {}

  // sync() in two halves: what threads did before they arrived is seen after the wait. On a GPU
  // the header has the whole barrier in the second half, which is more than it promises.
  arrival_token barrier_arrive(CUDACPU_HERE) const {
    cudacpu::arrive_at_split_barrier("thread_block::barrier_arrive", {file, line});
    return {};
  }
  void barrier_wait(arrival_token&&, CUDACPU_HERE) const {
    cudacpu::wait_at_split_barrier("thread_block::barrier_wait", {file, line});
  }

  static unsigned num_threads() { return details::threads_of_block(); }
  static unsigned size() { return details::threads_of_block(); }
  static unsigned thread_rank() { return details::thread_in_block(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};

inline thread_block this_thread_block() {
  return {};
}

// Shared memory for the tiles of several warps of a block with up to so many threads. GPUs from
// sm_80 on have separate memory for it, and so does this backend.
template <unsigned MaxBlockSize = 1024>
struct alignas(8) block_tile_memory {};

template <unsigned MaxBlockSize>
thread_block this_thread_block(block_tile_memory<MaxBlockSize>&) {
  return {};
}

// ---------------------------------------------------------------- parts of a warp

// The common base of tiles and coalesced groups. Ranks count the lanes of the mask upwards.
class lane_group : public thread_group {
 public:
  unsigned meta_group_rank() const { return meta_rank_; }
  unsigned meta_group_size() const { return meta_size_; }
  unsigned get_mask() const { return mask_; }  // for the collectives below, as NVIDIA's has it
  unsigned num_threads() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const { return cudacpu::rank_of(details::my_lane(), mask_); }

  // The value of the thread that is `delta` ranks further up or down; one's own beyond the end.
  template <class T>
  std::decay_t<T> shfl_down(T&& value, unsigned delta, CUDACPU_HERE) const {
    unsigned rank = thread_rank();
    return move<cudacpu::Move::kDown>(value, delta < size() - rank ? rank + delta : rank,
                                      {file, line});
  }
  template <class T>
  std::decay_t<T> shfl_up(T&& value, unsigned delta, CUDACPU_HERE) const {
    unsigned rank = thread_rank();
    return move<cudacpu::Move::kUp>(value, delta <= rank ? rank - delta : rank, {file, line});
  }

  int any(int predicate, CUDACPU_HERE) const { return __any_sync(mask_, predicate, file, line); }
  int all(int predicate, CUDACPU_HERE) const { return __all_sync(mask_, predicate, file, line); }
  // Masks of ranks, not of lanes.
  unsigned ballot(int predicate, CUDACPU_HERE) const {
    return cudacpu::pack(__ballot_sync(mask_, predicate, file, line), mask_);
  }
  template <class T>
  unsigned match_any(T value, CUDACPU_HERE) const {
    return cudacpu::pack(__match_any_sync(mask_, value, file, line), mask_);
  }
  template <class T>
  unsigned match_all(T value, int& predicate, CUDACPU_HERE) const {
    return cudacpu::pack(__match_all_sync(mask_, value, &predicate, file, line), mask_);
  }

 protected:
  lane_group(unsigned mask, unsigned meta_rank, unsigned meta_size)
      : thread_group(details::Kind::kLanes, mask, meta_rank, meta_size) {}

  template <cudacpu::Move kind, class T>
  std::decay_t<T> move(T& value, unsigned rank, cudacpu::Site site) const {
    return cudacpu::move<kind>(mask_, value, cudacpu::lane_of(rank, mask_), site);
  }
};

// Threads of a warp that are together at one place of the program.
class coalesced_group : public lane_group {
 public:
  explicit coalesced_group(unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1)
      : lane_group(mask, meta_rank, meta_size) {}

  template <class T>
  std::decay_t<T> shfl(T&& value, unsigned rank, CUDACPU_HERE) const {
    return move<cudacpu::Move::kFrom>(value, rank, {file, line});
  }
};

inline coalesced_group coalesced_threads(CUDACPU_HERE) {
  return coalesced_group(cudacpu::active_mask({file, line}));
}

// ---------------------------------------------------------------- tiles

namespace details {

// A tile within a warp.
template <unsigned Size>
class lane_tile : public lane_group {
 public:
  lane_tile(unsigned meta_rank, unsigned meta_size)
      : lane_group(tile_mask(Size), meta_rank, meta_size) {}

  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned thread_rank() { return my_lane() & (Size - 1); }

  // The value of the thread of this rank, modulo the size.
  template <class T>
  std::decay_t<T> shfl(T&& value, int rank, CUDACPU_HERE) const {
    return move<cudacpu::Move::kFrom>(value, static_cast<unsigned>(rank) & (Size - 1),
                                      {file, line});
  }
  template <class T>
  std::decay_t<T> shfl_xor(T&& value, unsigned flipped, CUDACPU_HERE) const {
    unsigned rank = thread_rank() ^ flipped;
    return move<cudacpu::Move::kXor>(value, rank < Size ? rank : thread_rank(), {file, line});
  }
};

// Values in a tile of several warps go through memory, on a GPU in slots of so many bytes.
constexpr size_t kWideTileBytes = 8;

// A tile of several warps, all of whose threads take part in whatever it does.
template <unsigned Size>
class wide_tile {
 public:
  wide_tile(unsigned meta_rank, unsigned meta_size)
      : meta_rank_(meta_rank), meta_size_(meta_size) {}

  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned thread_rank() { return thread_in_block() & (Size - 1); }
  unsigned meta_group_rank() const { return meta_rank_; }
  unsigned meta_group_size() const { return meta_size_; }

  static void sync(CUDACPU_HERE) {
    cudacpu::collect_tile(Size, cudacpu::kSyncTile, nullptr, {file, line});
  }
  // The value of the thread of this rank.
  template <class T>
  static T shfl(T value, unsigned rank, CUDACPU_HERE) {
    static_assert(sizeof(T) <= kWideTileBytes, "in a tile of several warps, at most 8 bytes");
    return cudacpu::move_in_tile(Size, value, rank, {file, line});
  }
  static int any(int predicate, CUDACPU_HERE) {
    return cudacpu::vote_in_tile(Size, cudacpu::kAnyInTile, predicate, {file, line}).any;
  }
  static int all(int predicate, CUDACPU_HERE) {
    return cudacpu::vote_in_tile(Size, cudacpu::kAllInTile, predicate, {file, line}).all;
  }

 private:
  unsigned meta_rank_;
  unsigned meta_size_;
};

}  // namespace details

// `Size` threads with consecutive ranks: a power of two, at most 1024.
template <unsigned Size, class Parent = void>
class thread_block_tile
    : public std::conditional_t<(Size > 32), details::wide_tile<Size>, details::lane_tile<Size>> {
  using Tile = std::conditional_t<(Size > 32), details::wide_tile<Size>, details::lane_tile<Size>>;

 public:
  static_assert(Size > 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
  static_assert(Size <= 1024, "a tile has at most 1024 threads");

  thread_block_tile(unsigned meta_rank, unsigned meta_size) : Tile(meta_rank, meta_size) {}
  // Convert a tile to the type without the parent.
  template <class Other>
  thread_block_tile(const thread_block_tile<Size, Other>& tile)
      : Tile(tile.meta_group_rank(), tile.meta_group_size()) {}
};

namespace details {

template <class Group>
inline constexpr bool kIsWideTile = false;
template <unsigned Size, class Parent>
inline constexpr bool kIsWideTile<thread_block_tile<Size, Parent>> = (Size > 32);

}  // namespace details

// ---------------------------------------------------------------- partitions

// Cut a block, or a tile, into tiles. On the hardware, all its threads call this together.
template <unsigned Size>
thread_block_tile<Size, thread_block> tiled_partition(const thread_block& block, CUDACPU_HERE) {
  if constexpr (Size > 32) cudacpu::check_tile(Size, {file, line});
  return {block.thread_rank() / Size, (block.num_threads() + Size - 1) / Size};
}
template <unsigned Size, unsigned ParentSize, class Grandparent>
thread_block_tile<Size, thread_block_tile<ParentSize, Grandparent>> tiled_partition(
    const thread_block_tile<ParentSize, Grandparent>& parent) {
  static_assert(Size < ParentSize, "a tile is smaller than what it is a part of");
  return {parent.thread_rank() / Size, ParentSize / Size};
}
inline thread_block_tile<1> this_thread() {
  return {0, 1};
}

// Partition by a size known at run time only: `size` ranks each, the last group may have fewer.
inline coalesced_group tiled_partition(const coalesced_group& parent, unsigned size, CUDACPU_HERE) {
  if (size == 0 || (size & (size - 1)) != 0)
    cudacpu::trap({file, line}, "tiled_partition: the size must be a power of two, not %u", size);
  unsigned number = parent.thread_rank() / size;
  unsigned mask = 0;
  for (unsigned rank = number * size; rank < parent.size() && rank < (number + 1) * size; ++rank)
    mask |= 1u << cudacpu::lane_of(rank, parent.get_mask());
  return coalesced_group(mask, number, (parent.size() + size - 1) / size);
}
inline thread_group tiled_partition(const thread_group& parent, unsigned size, CUDACPU_HERE) {
  if (parent.kind_ == details::Kind::kLanes)
    return tiled_partition(coalesced_group(parent.mask_), size, file, line);
  if (parent.kind_ != details::Kind::kBlock || size == 0 || (size & (size - 1)) != 0 || size > 32)
    cudacpu::trap({file, line},
                  "tiled_partition: only a block or a part of a warp can be cut into tiles, of a "
                  "size that is a power of two and at most 32, not %u",
                  size);
  return coalesced_group(details::tile_mask(size));
}

// The threads for which the predicate is true, and the others.
inline coalesced_group binary_partition(const lane_group& parent, bool predicate, CUDACPU_HERE) {
  unsigned mask = parent.get_mask();
  unsigned set = __ballot_sync(mask, predicate, file, line);
  if (set == mask || set == 0) return coalesced_group(mask, 0, 1);
  return coalesced_group(predicate ? set : mask & ~set, predicate, 2);
}
// The threads with the same label.
template <class Label>
coalesced_group labeled_partition(const lane_group& parent, Label label, CUDACPU_HERE) {
  static_assert(std::is_integral_v<Label> || std::is_pointer_v<Label>, "a label is an integer");
  if constexpr (std::is_same_v<Label, bool>) return binary_partition(parent, label, file, line);
  unsigned mine = 0;
  if constexpr (std::is_pointer_v<Label>)
    mine = __match_any_sync(parent.get_mask(), reinterpret_cast<unsigned long long>(label), file,
                            line);
  else if constexpr (sizeof(Label) < 4)
    mine = __match_any_sync(parent.get_mask(), static_cast<int>(label), file, line);
  else
    mine = __match_any_sync(parent.get_mask(), label, file, line);
  unsigned first = static_cast<unsigned>(__builtin_ctz(mine));
  unsigned leaders = __ballot_sync(parent.get_mask(), first == details::my_lane(), file, line);
  return coalesced_group(mine, cudacpu::rank_of(first, leaders),
                         static_cast<unsigned>(__builtin_popcount(leaders)));
}

// ---------------------------------------------------------------- functions of any group

template <class Group>
void sync(const Group& group, CUDACPU_HERE) {
  group.sync(file, line);
}
template <class Group>
auto thread_rank(const Group& group) {
  return group.thread_rank();
}
template <class Group>
auto group_size(const Group& group) {
  return group.num_threads();
}

// Call the function in one thread of the group; the second form gives its result to all.
template <class Group, class F, class... A>
void invoke_one(const Group& group, F&& function, A&&... arguments) {
  if (group.thread_rank() == 0) std::forward<F>(function)(std::forward<A>(arguments)...);
}
template <class Group, class F, class... A>
auto invoke_one_broadcast(const Group& group, F&& function, A&&... arguments) {
  std::decay_t<std::invoke_result_t<F, A...>> result{};
  if (group.thread_rank() == 0) result = std::forward<F>(function)(std::forward<A>(arguments)...);
  return group.shfl(result, 0);
}

}  // namespace cooperative_groups
