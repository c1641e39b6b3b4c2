// Day 94: the heat equation on a 3D grid, a 7-point stencil with temporal blocking
//
//   u'[z, y, x] = (1 - 6c) u[z, y, x] + c (u[z, y, x ± 1] + u[z, y ± 1, x] + u[z ± 1, y, x])
//
// u: (nz, ny, nx) fp32, 0 outside of the grid; c in [0, 1/6]; `steps` such steps.
//
// Bytes per point and step: one read and one write, 8. Operations: 13, a product and six fmaf.
// Two steps per pass move 8 bytes per point for both, which is 4 per step.
//
//   v1 point     one thread per point and step; the caches are to find six of seven reads
//   v2 march     a thread marches along z: two neighbours in registers, four in shared memory
//   v3 ring      four points per thread, planes by cp.async, several in flight
//   v4 two_steps   v3 with two steps per pass: the first one's planes stay in shared memory
//
// Run: python run_day.py 94

#include "common/cuda/binding.cuh"          // taught in day 6
#include "common/cuda/capability.cuh"       // taught in day 24
#include "common/cuda/multiprocessors.cuh"  // taught in days 2 and 16
#include "common/cuda/ptx/cp_async.cuh"     // taught in day 20
#include "common/cuda/shared_memory.cuh"    // taught in day 15
#include "common/cuda/tensor.cuh"           // taught in days 6 and 12

#include <utility>

constexpr int64_t MAX_STEPS = 65536;  // of one call

struct Grid {
  int64_t nz, ny, nx;
};

struct Factors {
  float centre, side;  // 1 - 6c and c
};

// The new value of a point. The factors are not negative and add up to 1, so no partial sum is
// further from 0 than the largest of the seven values. All rungs add in this order: equal bits.
__device__ float heat(float centre, float left, float right, float above, float below, float back,
                      float front, Factors f) {
  float sum = f.centre * centre;
  sum = fmaf(f.side, left, sum);
  sum = fmaf(f.side, right, sum);
  sum = fmaf(f.side, above, sum);
  sum = fmaf(f.side, below, sum);
  sum = fmaf(f.side, back, sum);
  return fmaf(f.side, front, sum);
}

Grid check_heat(const Tensor& u, double c, int64_t steps) {
  check(u, "u").on_gpu().dtype({ScalarType::Float}).rank(3).contiguous();
  STD_TORCH_CHECK(c >= 0 && c <= 1.0 / 6, "c: expected a number in [0, 1/6], got ", c);
  STD_TORCH_CHECK(steps >= 1 && steps <= MAX_STEPS, "steps: expected 1 to ", MAX_STEPS, ", got ",
                  steps);
  return {u.size(0), u.size(1), u.size(2)};
}

// Calls pass(from, to, k) until all steps are done, with k of them per pass, fewer in the last.
// `from` is at first u, which is never written; two buffers take turns, and the last is returned.
template <typename Pass>
Tensor run_passes(const Tensor& u, int64_t steps, int64_t per_pass, Pass&& pass) {
  const DeviceGuard guard(u);
  Tensor now = allocate_like(u);
  if (u.numel() == 0) return now;
  Tensor other = steps > per_pass ? allocate_like(u) : now;
  const float* from = data<float>(u);
  for (int64_t left = steps; left > 0; left -= per_pass) {
    pass(from, mutable_data<float>(now), left < per_pass ? left : per_pass);
    from = data<float>(now);
    std::swap(now, other);
  }
  return other;
}

// ---------------------------------------------------------------------------------------------
// v1: one thread per point. A warp has 32 neighbours of a row.

constexpr int ROW = 64;  // points along x per block
constexpr int ROWS = 4;  // along y

__global__ void __launch_bounds__(ROW* ROWS)
    heat_v1_point_kernel(const float* __restrict__ u, float* __restrict__ out, Grid g, Factors f) {
  const int64_t x = int64_t{blockIdx.x} * ROW + threadIdx.x;
  const int64_t y = int64_t{blockIdx.y} * ROWS + threadIdx.y;
  if (x >= g.nx || y >= g.ny) return;
  const int64_t plane = g.ny * g.nx;
  for (int64_t z = blockIdx.z; z < g.nz; z += gridDim.z) {  // one trip, unless nz > 65535
    const float* const p = u + z * plane + y * g.nx + x;
    out[p - u] =
        heat(*p, x > 0 ? p[-1] : 0, x + 1 < g.nx ? p[1] : 0, y > 0 ? p[-g.nx] : 0,
             y + 1 < g.ny ? p[g.nx] : 0, z > 0 ? p[-plane] : 0, z + 1 < g.nz ? p[plane] : 0, f);
  }
}

// Blocks of a plane along x and y.
dim3 plane_grid(const Grid& g, int width, int height) {
  return dim3(grid_size(ceil_div<int64_t>(g.nx, width), "u"),
              grid_size_y(ceil_div<int64_t>(g.ny, height), "u"));
}

Factors factors_of(double c) {
  return {static_cast<float>(1 - 6 * c), static_cast<float>(c)};
}

Tensor heat_v1_point(const Tensor& u, double c, int64_t steps) {
  const Grid g = check_heat(u, c, steps);
  return run_passes(u, steps, 1, [&](const float* from, float* to, int64_t) {
    dim3 blocks = plane_grid(g, ROW, ROWS);
    blocks.z = static_cast<unsigned>(g.nz < max_grid_y() ? g.nz : max_grid_y());  // as along y
    heat_v1_point_kernel<<<blocks, dim3(ROW, ROWS), 0, current_stream(u)>>>(from, to, g,
                                                                            factors_of(c));
    check_launch("heat_v1_point");
  });
}

// ---------------------------------------------------------------------------------------------
// v2 against v1: a block marches along z, a plane per trip. A thread keeps its point of the planes
// z - 1, z and z + 1 in registers. Plane z lies in shared memory, with a halo of one point.

constexpr int MARCH_ROWS = 8;
constexpr int MARCH_PLANES = 64;  // per block: enough blocks for a GPU, two planes read twice

__global__ void __launch_bounds__(ROW* MARCH_ROWS)
    heat_v2_march_kernel(const float* __restrict__ u, float* __restrict__ out, Grid g, Factors f) {
  __shared__ float tile[MARCH_ROWS + 2][ROW + 2];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int64_t x = int64_t{blockIdx.x} * ROW + tx, y = int64_t{blockIdx.y} * MARCH_ROWS + ty;
  const int64_t plane = g.ny * g.nx;
  const auto value = [&](int64_t row, int64_t column, int64_t z) {
    const bool inside =
        row >= 0 && row < g.ny && column >= 0 && column < g.nx && z >= 0 && z < g.nz;
    return inside ? u[z * plane + row * g.nx + column] : 0;
  };
  const int64_t first = int64_t{blockIdx.z} * MARCH_PLANES;
  const int64_t end = first + MARCH_PLANES < g.nz ? first + MARCH_PLANES : g.nz;
  float back = value(y, x, first - 1), centre = value(y, x, first);
  for (int64_t z = first; z < end; ++z) {
    const float front = value(y, x, z + 1);
    tile[ty + 1][tx + 1] = centre;
    if (tx == 0) tile[ty + 1][0] = value(y, x - 1, z);
    if (tx == ROW - 1) tile[ty + 1][ROW + 1] = value(y, x + 1, z);
    if (ty == 0) tile[0][tx + 1] = value(y - 1, x, z);
    if (ty == MARCH_ROWS - 1) tile[MARCH_ROWS + 1][tx + 1] = value(y + 1, x, z);
    __syncthreads();  // each thread waits for its neighbours' points
    if (x < g.nx && y < g.ny) {
      out[z * plane + y * g.nx + x] = heat(centre, tile[ty + 1][tx], tile[ty + 1][tx + 2],
                                           tile[ty][tx + 1], tile[ty + 2][tx + 1], back, front, f);
    }
    __syncthreads();  // before the next plane is stored, all have read this one
    back = centre;
    centre = front;
  }
}

void march(const Tensor& u, const float* from, float* to, const Grid& g, double c) {
  dim3 blocks = plane_grid(g, ROW, MARCH_ROWS);
  blocks.z = grid_size_y(ceil_div<int64_t>(g.nz, MARCH_PLANES), "u");  // the limit is that along y
  heat_v2_march_kernel<<<blocks, dim3(ROW, MARCH_ROWS), 0, current_stream(u)>>>(from, to, g,
                                                                                factors_of(c));
  check_launch("heat_v2_march");
}

Tensor heat_v2_march(const Tensor& u, double c, int64_t steps) {
  const Grid g = check_heat(u, c, steps);
  return run_passes(u, steps, 1,
                    [&](const float* from, float* to, int64_t) { march(u, from, to, g, c); });
}

// ---------------------------------------------------------------------------------------------
// v3 against v2: a lane has four points of a row, a quad, and a warp 128 of them; the neighbours
// along x come by shuffles. cp.async brings planes into a ring, IN_FLIGHT of them ahead.
//
// The kernel takes the number of steps per pass. Step t of the march's trip k computes plane k - t,
// from planes k - t - 1, k - t and k - t + 1 of step t - 1. Step 0 is what was loaded.

constexpr int QUAD = 4;
constexpr int LANES = 32;
constexpr int WARPS = 12;
constexpr int OWN_ROWS = 2;                  // per thread: rows warp + i · WARPS of the tile
constexpr int TILE_ROWS = WARPS * OWN_ROWS;  // with a halo of `Steps` rows at both ends
constexpr int INNER_X = (LANES - 2) * QUAD;  // with a halo of a quad at both ends: 120 of 128
constexpr int IN_FLIGHT = 3;                 // planes, 12 KB each
constexpr int RING = IN_FLIGHT + 2;          // and the two that are being read

using Plane = float4[TILE_ROWS][LANES];

template <int Steps>
constexpr int64_t SHARED_BYTES = (RING + 2 * (Steps - 1)) * sizeof(Plane);

// The new values of a quad, from itself, those above, below, behind and in front of it. The warp is
// a ring: lane 31 is left of lane 0. Lanes 30 and 31, at the ends of the row, are each other's
// false neighbours: what follows from that reaches `Steps` points, all in the halo.
__device__ float4 heat_quad(float4 q, float4 above, float4 below, float4 back, float4 front,
                            int lane, Factors f) {
  const float left = __shfl_sync(0xffffffffu, q.w, lane - 1);  // modulo 32
  const float right = __shfl_sync(0xffffffffu, q.x, lane + 1);
  return make_float4(heat(q.x, left, q.y, above.x, below.x, back.x, front.x, f),
                     heat(q.y, q.x, q.z, above.y, below.y, back.y, front.y, f),
                     heat(q.z, q.y, q.w, above.z, below.z, back.z, front.z, f),
                     heat(q.w, q.z, right, above.w, below.w, back.w, front.w, f));
}

template <int Steps>
__global__ void __launch_bounds__(LANES* WARPS, 2)
    heat_march_kernel(const float* __restrict__ u, float* __restrict__ out, Grid g, Factors f,
                      int64_t planes) {
  extern __shared__ __align__(128) Plane shared[];
  Plane* const ring = shared;            // [RING]: step 0
  Plane* const between = shared + RING;  // [Steps - 1][2]: the planes k - t of steps 1, 2, …
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  // Lanes 0 to 29 have the results, lane 30 the halo on the right, lane 31 that on the left. So
  // lane 0 begins at a sector of 32 bytes where nx is a multiple of 8, and 8 lanes touch 4 sectors.
  const int64_t x = int64_t{blockIdx.x} * INNER_X + (lane < LANES - 1 ? lane : -1) * QUAD;
  const int64_t top = int64_t{blockIdx.y} * (TILE_ROWS - 2 * Steps) - Steps;  // row 0 of the tile
  const int64_t first = blockIdx.z * planes;  // this block computes planes [first, end)
  const int64_t end = first + planes < g.nz ? first + planes : g.nz;
  const int64_t plane = g.ny * g.nx;
  bool in_plane[OWN_ROWS];   // whether the thread's quad is a part of the grid
  int64_t offset[OWN_ROWS];  // of the quad in a plane
#pragma unroll
  for (int i = 0; i < OWN_ROWS; ++i) {
    const int64_t y = top + warp + i * WARPS;
    in_plane[i] = x >= 0 && x < g.nx && y >= 0 && y < g.ny;
    offset[i] = y * g.nx + x;
  }
  const auto in_depth = [&](int64_t z) { return z >= 0 && z < g.nz; };

  // Copies of this thread's quads of plane z into a slot; 0 outside of the grid.
  const auto load = [&](int64_t z, int slot) {
    if (z < end + Steps) {
      const float* const from = u + z * plane;
#pragma unroll
      for (int i = 0; i < OWN_ROWS; ++i) {
        const bool valid = in_plane[i] && in_depth(z);
        ptx::cp_async_zero_fill<16>(&ring[slot][warp + i * WARPS][lane],
                                    valid ? from + offset[i] : u, valid ? 16 : 0);
      }
    }
    ptx::cp_async_commit();  // a group per plane, empty ones behind the last
  };

  // Of step t - 1, this thread's quads of the planes k - t - 1 and k - t.
  float4 back[Steps][OWN_ROWS] = {}, centre[Steps][OWN_ROWS] = {};
  const int64_t begin = first - Steps;
  for (int p = 0; p < IN_FLIGHT; ++p) load(begin + p, p);
  int slot = 0, parity = 0;  // of plane k
  for (int64_t k = begin; k < end + Steps; ++k) {
    ptx::cp_async_wait<IN_FLIGHT - 1>();
    // All threads' quads of plane k have arrived, and the trip before has read plane k - 2, whose
    // slot is the next to be filled.
    __syncthreads();
    load(k + IN_FLIGHT, (slot + IN_FLIGHT) % RING);
    const int centre_slot = (slot + RING - 1) % RING;  // of plane k - 1
    float4 front[OWN_ROWS];                            // of step t - 1, plane k - t + 1
#pragma unroll
    for (int i = 0; i < OWN_ROWS; ++i) front[i] = ring[slot][warp + i * WARPS][lane];
#pragma unroll
    for (int t = 1; t <= Steps; ++t) {
      const Plane& rows = t == 1 ? ring[centre_slot] : between[2 * (t - 2) + (parity ^ 1)];
      const bool known = k >= begin + 2 * t;  // three planes of step t - 1
#pragma unroll
      for (int i = 0; i < OWN_ROWS; ++i) {
        const int row = warp + i * WARPS;
        const float4 q = centre[t - 1][i];
        float4 next = make_float4(0, 0, 0, 0);
        if (known) {
          // The first and the last row have one neighbour. What follows from that reaches `Steps`
          // rows, all in the halo.
          const float4 above = rows[row > 0 ? row - 1 : row][lane];
          const float4 below = rows[row < TILE_ROWS - 1 ? row + 1 : row][lane];
          next = heat_quad(q, above, below, back[t - 1][i], front[i], lane, f);
        }
        back[t - 1][i] = q;
        centre[t - 1][i] = front[i];
        if (t < Steps) {
          if (!in_plane[i] || !in_depth(k - t)) next = make_float4(0, 0, 0, 0);
          between[2 * (t - 1) + parity][row][lane] = next;
          front[i] = next;
        } else if (known && in_plane[i] && row >= Steps && row < TILE_ROWS - Steps &&
                   lane < LANES - 2) {
          __stcs(reinterpret_cast<float4*>(out + (k - t) * plane + offset[i]), next);
        }
      }
    }
    slot = slot + 1 == RING ? 0 : slot + 1;
    parity ^= 1;
  }
}

// The number of parts along z: blocks run in waves of `resident`, and each block computes its share
// of the planes and loads 2 · Steps more. Returns the number for which all waves' planes are
// fewest.
int64_t parts_of(int64_t nz, int64_t tiles, int64_t resident, int steps) {
  int64_t best = 1, fewest = INT64_MAX;
  for (int64_t parts = 1; parts <= nz && parts <= 64; ++parts) {
    const int64_t waves = ceil_div(tiles * parts, resident);
    const int64_t cost = waves * (ceil_div(nz, parts) + 2 * steps);
    if (cost < fewest) fewest = cost, best = parts;
  }
  return best;
}

template <int Steps>
void ring_pass(const Tensor& u, const float* from, float* to, const Grid& g, double c) {
  constexpr int64_t bytes = SHARED_BYTES<Steps>;
  const auto kernel = heat_march_kernel<Steps>;
  allow_shared(kernel, bytes);
  dim3 blocks = plane_grid(g, INNER_X, TILE_ROWS - 2 * Steps);
  const int64_t tiles = int64_t{blocks.x} * blocks.y;
  const int64_t resident = resident_grid(u, kernel, LANES * WARPS, bytes, INT32_MAX);
  const int64_t planes = ceil_div(g.nz, parts_of(g.nz, tiles, resident, Steps));
  blocks.z = static_cast<unsigned>(ceil_div(g.nz, planes));
  kernel<<<blocks, LANES * WARPS, bytes, current_stream(u)>>>(from, to, g, factors_of(c), planes);
  check_launch("heat_march");
}

// Whether quads can be copied: rows of whole quads, at multiples of 16 bytes, and what the copies
// need of the card.
template <int Steps>
bool quads_fit(const Tensor& u, const Grid& g) {
  const DeviceGuard guard(u);
  const char* const reason =
      g.nx % QUAD != 0 || !is_aligned(u, 16)  ? "rows are not whole packs of 16 bytes"
      : !has_capability(8, 0)                 ? "the card has no cp.async"
      : shared_limit(u) < SHARED_BYTES<Steps> ? "the ring does not fit into shared memory"
                                              : nullptr;
  if (reason) fell_back("heat_v2_march", reason);
  return !reason;
}

Tensor heat_v3_ring(const Tensor& u, double c, int64_t steps) {
  const Grid g = check_heat(u, c, steps);
  if (!quads_fit<1>(u, g)) return heat_v2_march(u, c, steps);
  return run_passes(
      u, steps, 1, [&](const float* from, float* to, int64_t) { ring_pass<1>(u, from, to, g, c); });
}

// ---------------------------------------------------------------------------------------------
// v4 against v3: two steps per pass. The planes of the first stay in shared memory and registers.

Tensor heat_v4_two_steps(const Tensor& u, double c, int64_t steps) {
  const Grid g = check_heat(u, c, steps);
  if (!quads_fit<2>(u, g)) return heat_v2_march(u, c, steps);
  return run_passes(u, steps, 2, [&](const float* from, float* to, int64_t count) {
    count == 2 ? ring_pass<2>(u, from, to, g, c) : ring_pass<1>(u, from, to, g, c);
  });
}

// ---------------------------------------------------------------------------------------------

RUNG(day94, heat_v1_point, "(Tensor u, float c, int steps) -> Tensor");
RUNG(day94, heat_v2_march, "(Tensor u, float c, int steps) -> Tensor");
RUNG(day94, heat_v3_ring, "(Tensor u, float c, int steps) -> Tensor");
RUNG(day94, heat_v4_two_steps, "(Tensor u, float c, int steps) -> Tensor");
