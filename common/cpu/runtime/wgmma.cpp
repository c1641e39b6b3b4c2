// wgmma: products of a warpgroup that take place as late as is legal; and setmaxnreg.
#include "../../cuda/ptx/swizzle.cuh"
#include "tensor_core.h"
#include "warpgroup.h"
#include "wgmma_sums.h"

namespace cudacpu {

namespace {

constexpr uint32_t kAllWarps = (1u << kWarpsInGroup) - 1;
constexpr unsigned kPieceBytes = 16;  // shared memory is read in these; a row of K has two

// ------------------------------------------------------------------ tiles in shared memory

struct Descriptor {
  uint32_t start, leading, stride, base_offset;
  ptx::Swizzle swizzle;

  explicit Descriptor(uint64_t word)
      : start(static_cast<uint32_t>(word & 0x3fff) << 4),
        leading(static_cast<uint32_t>(word >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(word >> 32 & 0x3fff) << 4),
        base_offset(static_cast<uint32_t>(word >> 49 & 7)),
        swizzle(static_cast<ptx::Swizzle>((4 - (word >> 62)) % 4)) {}

  uint32_t swizzle_bytes() const { return 16u << static_cast<unsigned>(swizzle); }

  // K-major: piece `part` (0 or 1) of a row of K elements.
  uint32_t row_piece(unsigned row, unsigned part) const {
    uint32_t group = start + row / 8 * stride;
    if (swizzle == ptx::Swizzle::kNone) return group + row % 8 * kPieceBytes + part * leading;
    return ptx::swizzled(swizzle, group + row % 8 * swizzle_bytes() + part * kPieceBytes);
  }
  // MN-major: piece `part` (8 rows) of all those with this k.
  uint32_t column_piece(unsigned part, unsigned k) const {
    if (swizzle == ptx::Swizzle::kNone)
      return start + part * stride + k / 8 * leading + k % 8 * kPieceBytes;
    unsigned in_line = swizzle_bytes() / kPieceBytes;
    return ptx::swizzled(swizzle, start + part / in_line * leading + part % in_line * kPieceBytes +
                                      k / 8 * stride + k % 8 * swizzle_bytes());
  }
};

// Call f(row, k, address) for each piece of rows `first` to `first + rows` of a tile (of b:
// columns). It begins at this row, counted from `first`, and k, and goes on along one of them.
template <class F>
void each_piece(const Descriptor& tile, bool is_mn_major, unsigned first, unsigned rows,
                unsigned per_piece, F f) {
  if (is_mn_major) {
    for (unsigned row = 0; row < rows; row += per_piece)
      for (unsigned k = 0; k < 2 * per_piece; ++k)
        f(row, k, tile.column_piece((first + row) / per_piece, k));
  } else {
    for (unsigned row = 0; row < rows; ++row)
      for (unsigned part = 0; part < 2; ++part)
        f(row, part * per_piece, tile.row_piece(first + row, part));
  }
}

// Call put(row, k, value) for the same elements, as numbers.
template <class Element, class Put>
void read_tile(const char* arena, uint64_t descriptor, bool is_mn_major, unsigned first,
               unsigned rows, Put put) {
  constexpr unsigned kPer = Element::kPerRegister, kPerPiece = 4 * kPer;
  const unsigned along_row = is_mn_major, along_k = !is_mn_major;
  each_piece(Descriptor(descriptor), is_mn_major, first, rows, kPerPiece,
             [&](unsigned row, unsigned k, uint32_t address) {
               uint32_t words[4];
               memcpy(words, arena + address, sizeof words);
               for (unsigned i = 0; i < kPerPiece; ++i)
                 put(row + i * along_row, k + i * along_k,
                     Element::value(words[i / kPer], i % kPer));
             });
}

// Call f with the type of the elements.
template <class F>
void with_element(MatrixType type, F f) {
  switch (type) {
    case MatrixType::f16:
      return f(Half{});
    case MatrixType::bf16:
      return f(Bfloat16{});
    case MatrixType::tf32:
      return f(Tf32{});
    case MatrixType::e4m3:
      return f(E4m3{});
    case MatrixType::e5m2:
      return f(E5m2{});
  }
}

bool is_fp8(MatrixType type) {
  return type == MatrixType::e4m3 || type == MatrixType::e5m2;
}

int32_t least_exponent(MatrixType fp8) {
  return fp8 == MatrixType::e4m3 ? E4m3::kLeastExponent : E5m2::kLeastExponent;
}

unsigned depth_of(MatrixType type) {
  unsigned depth = 0;
  with_element(type, [&](auto element) { depth = 8 * decltype(element)::kPerRegister; });
  return depth;
}

void check_descriptor(const char* name, uint64_t word, bool is_mn_major, unsigned rows,
                      unsigned per_piece, Site site) {
  const Descriptor tile(word);
  uint32_t pattern = 8 * tile.swizzle_bytes();
  if (tile.base_offset != 0)
    trap(site, "wgmma: the descriptor of %s has base offset %u: only 0 is modelled", name,
         tile.base_offset);
  // Address bits 7 to 9, as far as the swizzle uses them, say which line of the pattern it is.
  if (tile.swizzle != ptx::Swizzle::kNone && tile.start % pattern >= tile.swizzle_bytes())
    trap(site,
         "wgmma: misaligned: the tile of %s starts at shared address 0x%x, which is in the middle "
         "of a swizzle of %u bytes; its pattern begins at multiples of %u",
         name, tile.start, tile.swizzle_bytes(), pattern);
  uint32_t lowest = ~0u, end = 0;
  each_piece(tile, is_mn_major, 0, rows, per_piece, [&](unsigned, unsigned, uint32_t address) {
    lowest = std::min(lowest, address);
    end = std::max(end, address + kPieceBytes);
  });
  size_t limit = worker->shared_end();
  if (lowest < kSharedBase || end > limit)
    trap(site,
         "wgmma: out of range: the tile of %s reaches from shared address 0x%x to 0x%x, but the "
         "block's shared memory is from 0x%zx to 0x%zx",
         name, lowest, end, kSharedBase, limit);
}

void add_spans(trace::Spans& spans, const char* arena, uint64_t word, bool is_mn_major,
               unsigned rows, unsigned per_piece) {
  each_piece(Descriptor(word), is_mn_major, 0, rows, per_piece,
             [&](unsigned, unsigned, uint32_t address) {
               trace::add_span(spans, arena + address, kPieceBytes, trace::Kind::kRead);
             });
}

// Return all that it reads, which is also what the tracer takes each warp to read.
trace::Spans spans_of_tiles(const char* arena, const Wgmma& what) {
  trace::Spans spans;
  if (!trace::wants_spans()) return spans;
  const unsigned per_piece = depth_of(what.type_a) / 2;
  if (!what.a_in_registers)
    add_spans(spans, arena, what.a, what.a_is_mn_major, kRowsOfWarp * kWarpsInGroup, per_piece);
  add_spans(spans, arena, what.b, what.b_is_mn_major, what.n, per_piece);
  return spans;
}

// ------------------------------------------------------------------ computing

// Read a's 16 rows of a warp from its lanes' registers.
template <class Element>
void read_registers(const uint32_t (&registers)[kWarpSize][4], float* a) {
  constexpr unsigned kPer = Element::kPerRegister, kDepth = 8 * kPer;
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    for (unsigned j = 0; j < 4; ++j)
      for (unsigned i = 0; i < kPer; ++i)
        a[(lane / 4 + j % 2 * 8) * kDepth + (j / 2 * 4 + lane % 4) * kPer + i] =
            Element::value(registers[lane][j], i);
}

// Compute the parts of these warps.
void compute(const char* arena, IssuedWgmma& wgmma, uint32_t warps) {
  warps &= ~wgmma.computed;
  if (!warps) return;
  wgmma.computed |= warps;
  const Wgmma& what = wgmma.instruction;
  const unsigned n = what.n, depth = depth_of(what.type_a);
  std::vector<float> a(kRowsOfWarp * depth), b(depth * n);
  with_element(what.type_b, [&](auto element) {
    read_tile<decltype(element)>(
        arena, what.b, what.b_is_mn_major, 0, n,
        [&](unsigned column, unsigned k, float value) { b[k * n + column] = value; });
  });
  for (; warps; warps &= warps - 1) {
    auto warp = static_cast<unsigned>(__builtin_ctz(warps));
    with_element(what.type_a, [&](auto element) {
      if (what.a_in_registers)
        read_registers<decltype(element)>(wgmma.a[warp], a.data());
      else
        read_tile<decltype(element)>(
            arena, what.a, what.a_is_mn_major, warp * kRowsOfWarp, kRowsOfWarp,
            [&](unsigned row, unsigned k, float value) { a[row * depth + k] = value; });
    });
    if (what.negative)
      for (float& value : a) value = -value;
    std::vector<float>& sums = wgmma.accumulators[warp]->sums;
    if (!what.accumulate) std::fill(sums.begin(), sums.end(), 0.0f);
    if (is_fp8(what.type_a))
      multiply_add_fp8(sums.data(), a.data(), b.data(), n, least_exponent(what.type_a),
                       least_exponent(what.type_b));
    else
      multiply_add(sums.data(), a.data(), b.data(), n, depth);
  }
}

// ------------------------------------------------------------------ accumulators

constexpr uint32_t kPoison = 0xffffffffu;  // a NaN, as in unwritten shared memory

// Call f(register of a lane, sum) for each element.
template <class F>
void each_element(Accumulator& accumulator, F f) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    for (unsigned i = 0; i < accumulator.n / 2; ++i) {
      unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      f(accumulator.lanes[lane][i], accumulator.sums[row * accumulator.n + column]);
    }
}

void take_registers(Accumulator& accumulator, bool wanted, Site site) {
  bool changed = false;
  each_element(accumulator, [&](float& value, float& sum) {
    changed = changed || bits<uint32_t>(value) != bits<uint32_t>(sum);
    sum = value;
    value = bits<float>(kPoison);
  });
  if (changed && wanted && !accumulator.fenced)
    trap(site,
         "wgmma: the accumulators were written since the last wgmma that used them, and there was "
         "no wgmma.fence after that");
  accumulator.under_way = true;
}

void give_registers(Accumulator& accumulator, Site site) {
  bool written = false;
  each_element(accumulator, [&](float& value, float& sum) {
    written = written || bits<uint32_t>(value) != kPoison;
    value = sum;
  });
  if (written)
    trap(site,
         "wgmma.wait_group: the accumulators were written while wgmmas were still computing them");
  accumulator.under_way = accumulator.fenced = false;
}

// Return the accumulator of these registers, taken from them unless it is in flight.
Accumulator& accumulator_of(WarpOfGroup& warp, float* const (&lanes)[kWarpSize],
                            const Wgmma& instruction, Site site) {
  auto& all = warp.accumulators;
  const unsigned n = instruction.n;
  for (auto one = all.begin(); one != all.end();) {
    if (one->n == n && std::equal(lanes, lanes + kWarpSize, one->lanes)) {
      if (!one->under_way) take_registers(*one, instruction.accumulate, site);
      return *one;
    }
    bool overlaps = false;
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
      overlaps = overlaps || (lanes[lane] < one->lanes[lane] + one->n / 2 &&
                              one->lanes[lane] < lanes[lane] + n / 2);
    if (overlaps && one->under_way)
      trap(site,
           "wgmma: some of these accumulators belong to a wgmma of another shape (N = %u) that is "
           "in flight",
           one->n);
    one = overlaps ? all.erase(one) : std::next(one);
  }
  Accumulator& fresh = all.emplace_back();
  std::copy(lanes, lanes + kWarpSize, fresh.lanes);
  fresh.n = n;
  fresh.fenced = true;
  fresh.sums.resize(kRowsOfWarp * n);
  take_registers(fresh, instruction.accumulate, site);
  return fresh;
}

// ------------------------------------------------------------------ issuing

bool same(const Wgmma& a, const Wgmma& b) {
  return a.n == b.n && a.type_a == b.type_a && a.type_b == b.type_b &&
         a.a_is_mn_major == b.a_is_mn_major && a.b_is_mn_major == b.b_is_mn_major &&
         a.negative == b.negative && a.accumulate == b.accumulate &&
         a.a_in_registers == b.a_in_registers && a.a == b.a && a.b == b.b;
}

struct Issue : WholeWarp {
  Wgmma instruction;
  float* d;
  const uint32_t* a;
  Site site;
};

// Issue a wgmma: all lanes of a warp are here.
void issue(Thread* lanes, uint32_t arrived) {
  Issue* issues[kWarpSize];
  if (!take_exchanges(lanes, arrived, issues)) return;
  const Issue& first = *issues[0];
  const Wgmma& what = first.instruction;
  const Site site = first.site;
  for (Issue* lane : issues)
    if (!same(lane->instruction, what))
      trap(site, "wgmma: the lanes of a warp pass different arguments");
  Member member = warpgroup_of(lanes[0], "wgmma", site);
  Warpgroup& group = member.group;
  WarpOfGroup& warp = member.warp();
  if (!warp.fenced)
    trap(site, "wgmma: no wgmma.fence before the first one: it orders the registers of d");

  const unsigned per_piece = depth_of(what.type_a) / 2;
  uint64_t number = warp.issued++;
  size_t place = number - group.computed;
  if (place == group.wgmmas.size()) {
    if (!what.a_in_registers)
      check_descriptor("a", what.a, what.a_is_mn_major, kRowsOfWarp * kWarpsInGroup, per_piece,
                       site);
    check_descriptor("b", what.b, what.b_is_mn_major, what.n, per_piece, site);
    group.wgmmas.emplace_back();
    group.wgmmas.back().instruction = what;
    group.wgmmas.back().site = site;
    group.wgmmas.back().reads = spans_of_tiles(member.block.arena, what);
  }
  IssuedWgmma& wgmma = group.wgmmas[place];
  if (!same(wgmma.instruction, what))
    trap(site,
         "wgmma: the warps of a warpgroup issue different wgmmas: warp %u issues another one, or "
         "the same with other arguments, than the warps at %s:%d",
         member.number, wgmma.site.file, wgmma.site.line);
  float* registers[kWarpSize];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) registers[lane] = issues[lane]->d;
  Accumulator& accumulator = accumulator_of(warp, registers, what, site);
  accumulator.last = number;
  wgmma.accumulators[member.number] = &accumulator;
  if (what.a_in_registers)
    for (unsigned lane = 0; lane < kWarpSize; ++lane)
      memcpy(wgmma.a[member.number][lane], issues[lane]->a, sizeof wgmma.a[0][0]);
  const char* arena = member.block.arena;
  check_spans(wgmma.reads, site);
  wgmma.starters[member.number] = trace::work_started(wgmma.reads, site);
  if (worker->completes_at_once())
    for (size_t i = 0; i <= place; ++i) compute(arena, group.wgmmas[i], 1u << member.number);
  if (group.waiting.size) worker->make_ready(group.waiting);
}

void nothing(Thread* lanes, uint32_t arrived) {
  WholeWarp* exchanges[kWarpSize];
  take_exchanges(lanes, arrived, exchanges);
}

void fence(Thread* lanes, uint32_t arrived) {
  nothing(lanes, arrived);
  WarpOfGroup& warp = warpgroup_of(lanes[0], "wgmma.fence", {}).warp();
  warp.fenced = true;
  for (Accumulator& accumulator : warp.accumulators) accumulator.fenced = true;
}

void commit(Thread* lanes, uint32_t arrived) {
  nothing(lanes, arrived);
  WarpOfGroup& warp = warpgroup_of(lanes[0], "wgmma.commit_group", {}).warp();
  warp.group_ends.push_back(warp.issued);
}

const Operation kWgmma{"wgmma", issue};
const Operation kFence{"wgmma.fence", fence};
const Operation kCommit{"wgmma.commit_group", commit};
const Operation kWait{"wgmma.wait_group", nothing};

// ------------------------------------------------------------------ waiting

bool all_have_issued(const Warpgroup& group, uint64_t until) {
  return std::all_of(std::begin(group.warps), std::end(group.warps),
                     [=](const WarpOfGroup& warp) { return warp.issued >= until; });
}

void* wait_for_other_warps(void* argument, void* stack_pointer) {
  const auto& wait = *static_cast<const Wait*>(argument);
  Thread& self = *current;
  self.state = ThreadState::kWaiting;
  warpgroup_of(self, wait.what, wait.site).group.waiting.push_back(&self);
  return worker->suspend(self, wait, stack_pointer);
}

}  // namespace

Member warpgroup_of(const Thread& thread, const char* what, Site site) {
  ResidentBlock& block = block_of(thread);
  auto warp = static_cast<size_t>(thread.warp - block.warps.data());
  size_t number = warp / kWarpsInGroup;
  if ((number + 1) * kWarpsInGroup * kWarpSize > block.threads.size())
    trap(
        site,
        "%s: warp %zu is not part of a complete warpgroup: that is four warps, the first of them a "
        "multiple of four, and the block has %zu threads",
        what, warp, block.threads.size());
  if (block.warpgroups.size() <= number) block.warpgroups.resize(number + 1);
  auto& group = block.warpgroups[number];
  if (!group) group = std::make_unique<Warpgroup>();
  return {block, *group, static_cast<unsigned>(warp % kWarpsInGroup)};
}

void forget_warpgroups(ResidentBlock& block) {
  block.warpgroups.clear();
}

void start_wgmma(const Wgmma& instruction, float* d, const uint32_t* a, Site site) {
  needs_wgmma("wgmma", site);
  Issue exchange{{}, instruction, d, a, site};
  collect_warp(kWgmma, exchange, site);
}

void wgmma_fence(Site site) {
  needs_wgmma("wgmma", site);
  warpgroup_of(*current, kFence.name, site);  // traps here, where the line is known
  WholeWarp exchange;
  collect_warp(kFence, exchange, site);
}

void commit_wgmma(Site site) {
  warpgroup_of(*current, kCommit.name, site);
  WholeWarp exchange;
  collect_warp(kCommit, exchange, site);
}

void wait_for_wgmma(unsigned n, Site site) {
  Member member = warpgroup_of(*current, kWait.name, site);
  WholeWarp exchange;
  collect_warp(kWait, exchange, site);
  WarpOfGroup& warp = member.warp();
  Warpgroup& group = member.group;
  auto& ends = warp.group_ends;
  if (ends.size() <= n) return trace::waited_at(&group);  // another lane has seen to it
  const uint64_t until = ends[ends.size() - n - 1];
  Wait wait{kWait.name, site};
  while (!all_have_issued(group, until)) cudacpu_suspend(&wait_for_other_warps, &wait);
  if (group.computed < until) {
    for (; group.computed < until; ++group.computed) {
      IssuedWgmma& oldest = group.wgmmas.front();
      compute(member.block.arena, oldest, kAllWarps);
      for (const trace::Starter& starter : oldest.starters)
        trace::work_done(oldest.reads, starter, starter.clock);
      group.wgmmas.pop_front();
    }
    // The reads of all warps are done, for every thread that waits: that memory may be overwritten.
    const Warp* first = current->warp - member.number;
    for (unsigned i = 0; i < kWarpsInGroup; ++i)
      trace::warp_arrived_at(&group, first[i].lanes, ~0u);
    trace::phase_ended(&group);
  }
  trace::waited_at(&group);
  for (Accumulator& accumulator : warp.accumulators)
    if (accumulator.under_way && accumulator.last < until) give_registers(accumulator, site);
  ends.erase(ends.begin(), ends.end() - std::min<std::ptrdiff_t>(n, std::ssize(ends)));
}

std::string describe_warpgroup(const Thread& thread) {
  for (const auto& group : block_of(thread).warpgroups) {
    if (!group) continue;
    for (const Thread* other = group->waiting.first; other; other = other->next) {
      if (other != &thread) continue;
      std::string text = ", where the warps of the warpgroup have issued";
      for (unsigned i = 0; i < kWarpsInGroup; ++i)
        text += format("%s %llu", i ? "," : "",
                       static_cast<unsigned long long>(group->warps[i].issued));
      return text + " wgmmas";
    }
  }
  return "";
}

// ------------------------------------------------------------------ setmaxnreg

void set_max_registers(const char* what, int registers, Site site) {
  needs_setmaxnreg(what, site);
  Member member = warpgroup_of(*current, what, site);
  WholeWarp exchange;
  static const Operation kSet{"setmaxnreg", nothing};
  collect_warp(kSet, exchange, site);
  if (current->lane != 0) return;
  auto& all = member.group.register_limits;
  size_t place = member.warp().register_limits++;
  if (place == all.size()) all.emplace_back(registers, site);
  if (all[place].first != registers)
    trap(site, "%s: %d registers, while another warp of the warpgroup says %d at %s:%d", what,
         registers, all[place].first, all[place].second.file, all[place].second.line);
}

}  // namespace cudacpu
