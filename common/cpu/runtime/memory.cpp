// Device memory, which is host memory here, and work on it: copies and fills.
#include "graph.h"

#include <link.h>
#include <map>

namespace cudacpu {

namespace {

constexpr size_t kAlignment = kTextureAlignment;
constexpr size_t kPage = 4096;
constexpr size_t kPitch = 512;
constexpr size_t kBeyond = 64;  // bytes behind an allocation that are watched
constexpr unsigned char kFresh = 0xff;
// The value of these bytes, a large number in every type. NaN would not do: a kernel that computes
// from NaN writes back the same NaN, which would not be noticed.
constexpr unsigned char kUntouched = 0x4a;  // 3.3 million in float, 12.6 in half
constexpr char kFreed[] = "of memory that a graph has freed";

enum class Owner : uint8_t {
  kProgram,
  kGraph,      // a graph that has allocated it, or will, at this address
  kGraphFreed  // the same, but freed since
};

struct Allocation {
  size_t bytes;
  cudaMemoryType type;
  Owner owner = Owner::kProgram;
  bool given = false;  // to a kernel, or to a copy or fill that wrote to it: see look_for_unset
};

// Memory that a program has freed, as long as nothing is allocated there again.
struct Freed {
  size_t bytes;
  const void* code;  // that freed it
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Freed> given_back;   // by address
  std::map<char*, Allocation> allocations;   // by address
  std::map<const char*, size_t> registered;  // the program's own memory: bytes, by address
  std::map<char*, size_t> freed;             // kept where streams are late: bytes, by address
};

Memory& memory() {
  static auto& instance = *new Memory;
  return instance;
}

// The allocation that holds the address, or null. The caller holds the lock.
const std::pair<char* const, Allocation>* find(const void* address) {
  auto& allocations = memory().allocations;
  auto after = allocations.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == allocations.begin()) return nullptr;
  const auto& candidate = *std::prev(after);
  return address < candidate.first + std::max<size_t>(candidate.second.bytes, 1) ? &candidate
                                                                                 : nullptr;
}

// The memory that was freed and holds the address, or null. The caller holds the lock.
const Freed* find_given_back(const void* address) {
  auto& freed = memory().given_back;
  auto after = freed.upper_bound(static_cast<const char*>(address));
  if (after == freed.begin()) return nullptr;
  const auto& [begin, candidate] = *std::prev(after);
  return address < begin + candidate.bytes ? &candidate : nullptr;
}

// The caller holds the lock.
void forget_given_back(const char* begin, size_t bytes) {
  auto& freed = memory().given_back;
  auto place = freed.lower_bound(begin);
  if (place != freed.begin() && std::prev(place)->first + std::prev(place)->second.bytes > begin)
    --place;
  while (place != freed.end() && place->first < begin + bytes) place = freed.erase(place);
}

// Of address and size. Processes share whole pages; but where addresses are watched, the end of an
// allocation is to be seen.
size_t alignment_of(cudaMemoryType type) {
  return type == cudaMemoryTypeDevice && !kWatchesAddresses ? kPage : kAlignment;
}

cudaError_t allocate(void** address, size_t bytes, cudaMemoryType type) {
  if (!address) return set_error(cudaErrorInvalidValue);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  size_t free = 0;
  // Linux hands out more than there is and kills the process later: ask first.
  if (bytes >= size_t{64} << 20 && (cudaMemGetInfo(&free, nullptr), bytes > free))
    return set_error(cudaErrorMemoryAllocation);
  const size_t alignment = alignment_of(type);
  // If addresses are watched, the block has no extra byte. (aligned_alloc takes multiples only.)
  const size_t room =
      kWatchesAddresses ? bytes : (bytes + kBeyond + alignment - 1) / alignment * alignment;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, room)) return set_error(cudaErrorMemoryAllocation);
  memset(block, kFresh, room);  // fresh device memory holds anything: here NaN
  if (!kWatchesAddresses) memset(static_cast<char*>(block) + bytes, kUntouched, kBeyond);
  if (alignment == kPage) close_to_host(block, room);
  if (type == cudaMemoryTypeDevice) trace::follow(block, bytes);
  std::lock_guard lock(memory().mutex);
  memory().allocations[static_cast<char*>(block)] = {bytes, type};
  forget_given_back(static_cast<char*>(block), bytes);
  *address = block;
  return cudaSuccess;
}

cudaError_t release(void* address, cudaMemoryType type) {
  if (!address) return cudaSuccess;
  const MemoryOpen open;
  std::lock_guard lock(memory().mutex);
  auto found = memory().allocations.find(static_cast<char*>(address));
  if (found == memory().allocations.end() || found->second.type != type ||
      found->second.owner == Owner::kGraphFreed)
    return set_error(cudaErrorInvalidValue);
  trace::follow_no_longer(address);
  if (found->second.owner == Owner::kGraph) {
    found->second.owner = Owner::kGraphFreed;
    memset(address, 0xff, found->second.bytes);
    forbid(address, found->second.bytes);
    return cudaSuccess;
  }
  const size_t bytes = found->second.bytes;
  memory().allocations.erase(found);
  if (refuses_host_pointers())
    memory().given_back[static_cast<char*>(address)] = {bytes, calling_code()};
  leave_pool(address);
  stop_sharing(address);
  if (streams_are_late()) {
    memset(address, kFresh, bytes);
    forbid(address, bytes);
    memory().freed[static_cast<char*>(address)] = bytes;
    return cudaSuccess;
  }
  open_to_host(address);
  free(address);
  return cudaSuccess;
}

// Release device memory, or managed.
cudaError_t release_device(void* address) {
  if (!address) return cudaSuccess;
  {
    std::lock_guard lock(memory().mutex);
    const auto* holder = find(address);
    if (holder && holder->second.type == cudaMemoryTypeManaged)
      memory().allocations.at(holder->first).type = cudaMemoryTypeDevice;
  }
  return release(address, cudaMemoryTypeDevice);
}

// Return false if the range begins in an allocation of ours and ends beyond it. Memory that this
// library did not allocate (a tensor, the host's) cannot be judged.
bool fits(const void* address, size_t bytes) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  return !holder ||
         static_cast<const char*>(address) + bytes <= holder->first + holder->second.bytes;
}

// Return true if the memory was allocated for the device alone.
bool is_device_memory(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  return holder && holder->second.type == cudaMemoryTypeDevice;
}

// Bytes from the first of a row to the last of the last row.
size_t extent(size_t pitch, size_t width, size_t height) {
  return (height - 1) * pitch + width;
}

// Return true for memory that a graph has freed, or not allocated yet.
bool is_freed(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  return holder && holder->second.owner == Owner::kGraphFreed;
}

Fill row(void* to, int value, size_t bytes) {
  return {to, bytes, static_cast<unsigned>(value), 1, bytes, 1};
}

// Record that no graph allocates at this address any more. The program has to free what remains.
void leave_to_program(void* address) {
  std::lock_guard lock(memory().mutex);
  auto found = memory().allocations.find(static_cast<char*>(address));
  if (found->second.owner == Owner::kGraph) {
    found->second.owner = Owner::kProgram;
    return;
  }
  allow(address, found->second.bytes);
  memory().allocations.erase(found);
  trace::follow_no_longer(address);
  open_to_host(address);
  free(address);
}

std::atomic<bool> host_pointers_refused{false};

// Return true if an address is in a segment of the program or of one of its libraries.
bool is_in_module(uintptr_t address) {
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    const uintptr_t address = *static_cast<uintptr_t*>(data);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD && begin <= address && address <= begin + segment.p_memsz)
        return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(look, &address) != 0;
}

// Allocate at once, which a capture may forbid.
cudaError_t allocate_now(const char* function, void** address, size_t bytes, cudaMemoryType type) {
  if (cudaError_t error = refuse_unsafe(function); error != cudaSuccess) return error;
  return allocate(address, bytes, type);
}

// A __device__ or __constant__ variable is a variable.
char* in_symbol(const void* symbol, size_t offset) {
  return static_cast<char*>(const_cast<void*>(symbol)) + offset;
}

// Return true for memory of the host that is neither pinned nor managed.
bool is_pageable(const void* address) {
  if (settings().host_is_pinned) return false;
  std::lock_guard lock(memory().mutex);
  if (find(address)) return false;
  const auto& registered = memory().registered;
  auto after = registered.upper_bound(static_cast<const char*>(address));
  if (after == registered.begin()) return true;
  const auto& [begin, bytes] = *std::prev(after);
  return address >= begin + bytes;
}
bool is_pinned(const void* address) {
  {
    std::lock_guard lock(memory().mutex);
    const auto* holder = find(address);
    if (holder) return holder->second.type == cudaMemoryTypeHost;
  }
  return !is_pageable(address);
}
bool reads_pageable(const Copy& copy) {
  return (copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyHostToHost ||
          copy.kind == cudaMemcpyDefault) &&
         is_pageable(copy.from);
}
bool writes_pageable(const Copy& copy) {
  return (copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyHostToHost ||
          copy.kind == cudaMemcpyDefault) &&
         is_pageable(copy.to);
}

// Defer work of a function that has no stream as a GPU does, where streams are late: it uses the
// legacy default stream and waits, but not for a copy within the device, for the transfer of staged
// memory to the device, nor for a fill of device memory.
cudaError_t defer_without_stream(const Copy& copy) {
  const bool staged = reads_pageable(copy) && !writes_pageable(copy);
  const bool within_device =
      copy.kind == cudaMemcpyDeviceToDevice ||
      (copy.kind == cudaMemcpyDefault && is_device_memory(copy.from) && is_device_memory(copy.to));
  if (staged)
    if (cudaError_t error = wait_for(cudaStreamLegacy); error != cudaSuccess) return error;
  if (cudaError_t error = defer(cudaStreamLegacy, copy); error != cudaSuccess) return error;
  return staged || within_device ? cudaSuccess : wait_for(cudaStreamLegacy);
}
cudaError_t defer_without_stream(const Fill& fill) {
  if (cudaError_t error = defer(cudaStreamLegacy, fill); error != cudaSuccess) return error;
  return is_pinned(fill.to) ? wait_for(cudaStreamLegacy) : cudaSuccess;
}

// Submit the work of a function that has no stream.
template <class W>
cudaError_t submit_without_stream(const W& work, const char* function) {
  if (cudaError_t error = refuse_on_legacy_stream(function); error != cudaSuccess) return error;
  if (cudaError_t error = lost_context(); error != cudaSuccess) return error;
  return streams_are_late() ? defer_without_stream(work) : perform(work);
}

// Refuse a copy between host and device whose device side is a __device__ variable by its name.
cudaError_t refuse_variables(const void* to, const void* from, cudaMemcpyKind kind) {
  const void* device = kind == cudaMemcpyDeviceToHost   ? from
                       : kind == cudaMemcpyHostToDevice ? to
                                                        : nullptr;
  if (!is_variable_of_host(device)) return cudaSuccess;
  return set_error(cudaErrorInvalidValue,
                   "a __device__ variable: cudaMemcpyToSymbol and cudaMemcpyFromSymbol take it");
}

// Check that the range is memory that can move, managed or the system's own, and that the location
// is valid for it. The system's memory cannot be judged.
cudaError_t check_movable(const void* address, size_t bytes, cudaMemLocation location) {
  switch (location.type) {
    case cudaMemLocationTypeDevice:
      if (cudaError_t error = check_device(location.id); error != cudaSuccess) return error;
      break;
    case cudaMemLocationTypeHost:
    case cudaMemLocationTypeHostNuma:
    case cudaMemLocationTypeHostNumaCurrent:
      break;
    default:
      return set_error(cudaErrorInvalidValue);
  }
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  if (!address || bytes == 0) return set_error(cudaErrorInvalidValue);
  if (!holder) return cudaSuccess;
  auto offset = static_cast<size_t>(static_cast<const char*>(address) - holder->first);
  const Allocation& allocation = holder->second;
  bool fits = allocation.type == cudaMemoryTypeManaged && bytes <= allocation.bytes - offset;
  return fits ? cudaSuccess : set_error(cudaErrorInvalidValue);
}

}  // namespace

bool refuses_host_pointers() {
  return host_pointers_refused.load(std::memory_order_relaxed);
}

bool is_host_memory(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address < kPage) return false;  // null, or an offset from it
  {
    // Programs that count from 1 pass the address before the first element, others the end.
    std::lock_guard lock(memory().mutex);
    auto& allocations = memory().allocations;
    auto after = allocations.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    if (after != allocations.end() &&
        reinterpret_cast<uintptr_t>(after->first) - address <= kBeyond)
      return false;
    if (after != allocations.begin()) {
      const auto& [begin, allocation] = *std::prev(after);
      if (address <= reinterpret_cast<uintptr_t>(begin) + allocation.bytes) return false;
    }
    for (const auto& [begin, bytes] : memory().registered)
      if (begin <= pointer && pointer <= begin + bytes) return false;
  }
  return !is_in_module(address);
}

std::string describe_allocation(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  if (!holder) return "";
  return format("global memory, byte %td of an allocation of %s",
                static_cast<const char*>(address) - holder->first,
                in_bytes(holder->second.bytes).c_str());
}

std::pair<const void*, size_t> allocation_around(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  if (!holder) return {nullptr, 0};
  return {holder->first, holder->second.bytes};
}

std::string writes_beyond_allocations(const Launch& launch) {
  std::string found;
  if (kWatchesAddresses) return found;  // which are found one by one
  std::lock_guard lock(memory().mutex);
  for (auto& [begin, allocation] : memory().allocations) {
    if (allocation.owner != Owner::kProgram) continue;
    auto* beyond = reinterpret_cast<unsigned char*>(begin) + allocation.bytes;
    auto* changed =
        std::find_if(beyond, beyond + kBeyond, [](auto byte) { return byte != kUntouched; });
    if (changed == beyond + kBeyond) continue;
    if (!found.empty()) found += '\n';
    found += format(
        "CUDA on CPU: written %s beyond the end of an allocation of %s\n%s",
        changed == beyond ? "right" : in_bytes(static_cast<size_t>(changed - beyond)).c_str(),
        in_bytes(allocation.bytes).c_str(), launch.describe().c_str());
    memset(beyond, kUntouched, kBeyond);
  }
  return found;
}

std::string was_freed(const void* address) {
  std::lock_guard lock(memory().mutex);
  if (find(address)) return "";
  const Freed* freed = find_given_back(address);
  if (!freed) return "";
  const auto* code = static_cast<const char*>(freed->code);
  const std::string line = code ? source_line(code - 1) : "";
  return "memory that was freed" + (line.empty() ? "" : ", at " + line);
}

cudaError_t check(const Copy& copy) {
  if (copy.kind < cudaMemcpyHostToHost || copy.kind > cudaMemcpyDefault)
    return set_error(cudaErrorInvalidMemcpyDirection);
  if (copy.width > copy.to_pitch || copy.width > copy.from_pitch)
    return set_error(cudaErrorInvalidPitchValue);
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (!copy.to || !copy.from || !fits(copy.to, extent(copy.to_pitch, copy.width, copy.height)) ||
      !fits(copy.from, extent(copy.from_pitch, copy.width, copy.height)))
    return set_error(cudaErrorInvalidValue);
  // The host's side cannot be device memory; what the other side is cannot be judged.
  const bool from_host = copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyHostToHost;
  const bool to_host = copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyHostToHost;
  if ((from_host && is_device_memory(copy.from)) || (to_host && is_device_memory(copy.to)))
    return set_error(cudaErrorInvalidValue,
                     "the direction of this copy is not that of its pointers");
  // The device's side: other memory there may be the host's by now.
  if (copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyHostToDevice) {
    const void* device = copy.kind == cudaMemcpyDeviceToHost ? copy.from : copy.to;
    if (std::string why = was_freed(device); !why.empty())
      return set_error(cudaErrorInvalidValue, why);
  }
  return cudaSuccess;
}

namespace {

std::atomic<bool> looking_for_unset{false};  // in programs, until one is found
std::string unset_in_copy;

// Return true if these are floats of usual sizes together with some that are exactly the NaN of
// memory that nothing has written: arithmetic passes it on, bit for bit.
template <class Word>
bool has_unset(const Word* words, size_t n, int exponent_bits) {
  constexpr Word unset = ~Word{0};
  const int mantissa_bits = 8 * sizeof(Word) - 1 - exponent_bits;
  const int mask = (1 << exponent_bits) - 1, bias = mask / 2;
  bool found = false, numbers = false;
  for (size_t i = 0; i < n; ++i) {
    found = found || words[i] == unset;
    if (words[i] == unset || words[i] << 1 == 0) continue;
    const int exponent = static_cast<int>(words[i] >> mantissa_bits & mask) - bias;
    if (exponent < -40 || exponent > 40) return false;
    numbers = true;
  }
  return found && numbers;
}

// Return true if the memory belongs to an allocation that nothing can have written to.
bool never_given(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  return holder && holder->second.type == cudaMemoryTypeDevice && !holder->second.given;
}

void look_for_unset(const Copy& copy) {
  constexpr size_t kMost = 4 << 20;  // bytes that are looked at
  if (!is_device_memory(copy.from) || is_device_memory(copy.to)) return;
  for (size_t y = 0; y < copy.height && !shares_memory(); ++y) {
    const auto unset =
        trace::unset_part(static_cast<const char*>(copy.from) + y * copy.from_pitch, copy.width);
    if (!unset || !looking_for_unset.exchange(false)) continue;
    const std::string row = copy.height > 1 ? format(" of row %zu", y) : "", line = calling_line();
    unset_in_copy = format(
        "%sa copy of %zu bytes brought memory to the host that nothing has written: bytes %zu to "
        "%zu%s",
        line.empty() ? "" : (line + ": ").c_str(), copy.width * copy.height, unset->first,
        unset->second, row.c_str());
  }
  if (copy.height != 1) return;
  const size_t bytes = std::min(copy.width, kMost);
  const auto* got = static_cast<const unsigned char*>(copy.to);
  if (never_given(copy.from) && std::all_of(got, got + bytes, [](int b) { return b == 0xff; })) {
    if (looking_for_unset.exchange(false))
      unset_in_copy = format(
          "a copy of %zu bytes brought memory to the host that nothing has written: it was given "
          "to no kernel, and to no copy or fill before",
          copy.width);
    return;
  }
  const auto at = reinterpret_cast<uintptr_t>(copy.to);
  const bool found =
      (at % 4 == 0 && has_unset(static_cast<const uint32_t*>(copy.to), bytes / 4, 8)) ||
      (at % 8 == 0 && has_unset(static_cast<const uint64_t*>(copy.to), bytes / 8, 11));
  if (!found || !looking_for_unset.exchange(false)) return;
  unset_in_copy = format(
      "some of the numbers that a copy of %zu bytes brought to the host are NaN, and come from "
      "memory that nothing has written: --sanitize looks where",
      copy.width);
}

}  // namespace

void note_given(const void* data, size_t bytes) {
  if (!looking_for_unset || reinterpret_cast<uintptr_t>(data) % sizeof(void*) != 0) return;
  std::lock_guard lock(memory().mutex);
  const auto* words = static_cast<void* const*>(data);
  for (size_t i = 0; i < bytes / sizeof(void*); ++i)
    if (const auto* holder = find(words[i])) memory().allocations.at(holder->first).given = true;
}

cudaError_t perform(const Copy& copy) {
  if (cudaError_t error = check(copy); error != cudaSuccess) return error;
  if (is_freed(copy.to) || is_freed(copy.from)) return set_error(cudaErrorInvalidValue, kFreed);
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  count_work();
  const MemoryOpen open;
  for (size_t y = 0; y < copy.height; ++y)
    memmove(static_cast<char*>(copy.to) + y * copy.to_pitch,
            static_cast<const char*>(copy.from) + y * copy.from_pitch, copy.width);
  trace::written(copy.to, extent(copy.to_pitch, copy.width, copy.height));
  if (looking_for_unset) {
    note_given(&copy.to, sizeof copy.to);
    constexpr size_t kPointers = 4096;  // bytes: an array of pointers
    if (copy.width <= kPointers && copy.height == 1) note_given(copy.from, copy.width);
    look_for_unset(copy);
  }
  return cudaSuccess;
}

cudaError_t defer(cudaStream_t stream, const Copy& copy) {
  if (cudaError_t error = check(copy); error != cudaSuccess) return error;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  Copy later = copy;
  std::shared_ptr<std::vector<char>> staged;
  if (reads_pageable(copy) && !writes_pageable(copy)) {
    // Pageable memory is read at once, into memory that the copy can be made from later.
    staged = std::make_shared<std::vector<char>>(copy.width * copy.height);
    later.from = staged->data();
    later.from_pitch = copy.width;
    const MemoryOpen open;
    for (size_t y = 0; y < copy.height; ++y)
      memcpy(staged->data() + y * copy.width,
             static_cast<const char*>(copy.from) + y * copy.from_pitch, copy.width);
  }
  const std::string what = format("a copy of %s", in_bytes(copy.width * copy.height).c_str());
  const DeferredWork work = defer(stream, what,
                                  [later, staged, what] {
                                    refuse_freed_memory(later.to, what);
                                    refuse_freed_memory(later.from, what);
                                    return perform(later);
                                  },
                                  {copy.to, copy.from});
  // A GPU has written pageable memory when the call returns, and waits for a copy within the host.
  const bool waits = writes_pageable(copy) || copy.kind == cudaMemcpyHostToHost;
  return waits ? wait_for(work) : cudaSuccess;
}

cudaError_t check(const Fill& fill) {
  size_t bytes = fill.width * fill.element_bytes;
  if (fill.element_bytes != 1 && fill.element_bytes != 2 && fill.element_bytes != 4)
    return set_error(cudaErrorInvalidValue);
  if (fill.height > 1 && bytes > fill.pitch) return set_error(cudaErrorInvalidPitchValue);
  if (bytes == 0 || fill.height == 0) return cudaSuccess;
  bool aligned = reinterpret_cast<uintptr_t>(fill.to) % fill.element_bytes == 0 &&
                 (fill.height == 1 || fill.pitch % fill.element_bytes == 0);
  if (!fill.to || !aligned || !fits(fill.to, extent(fill.pitch, bytes, fill.height)))
    return set_error(cudaErrorInvalidValue);
  return cudaSuccess;
}

cudaError_t perform(const Fill& fill) {
  if (cudaError_t error = check(fill); error != cudaSuccess) return error;
  if (is_freed(fill.to)) return set_error(cudaErrorInvalidValue, kFreed);
  note_given(&fill.to, sizeof fill.to);
  count_work();
  const MemoryOpen open;
  for (size_t y = 0; y < fill.height; ++y) {
    char* row = static_cast<char*>(fill.to) + y * fill.pitch;
    if (fill.element_bytes == 1) {
      if (fill.width) memset(row, static_cast<int>(fill.value), fill.width);
    } else if (fill.element_bytes == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(row), fill.width, static_cast<uint16_t>(fill.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(row), fill.width, fill.value);
    }
  }
  if (fill.height)
    trace::written(fill.to, extent(fill.pitch, fill.width * fill.element_bytes, fill.height));
  return cudaSuccess;
}

cudaError_t defer(cudaStream_t stream, const Fill& fill) {
  if (cudaError_t error = check(fill); error != cudaSuccess) return error;
  const size_t bytes = fill.width * fill.element_bytes * fill.height;
  const std::string what = format("a fill of %s", in_bytes(bytes).c_str());
  defer(stream, what,
        [fill, what] {
          refuse_freed_memory(fill.to, what);
          return perform(fill);
        },
        {fill.to});
  return cudaSuccess;
}

cudaError_t allocate_for_graph(void** address, size_t bytes, Allocate& work) {
  if (cudaError_t error = allocate(address, bytes, cudaMemoryTypeDevice); error != cudaSuccess)
    return error;
  if (!*address) return cudaSuccess;
  std::lock_guard lock(memory().mutex);
  memory().allocations.at(static_cast<char*>(*address)).owner = Owner::kGraphFreed;
  forbid(*address, bytes);
  work = {std::shared_ptr<void>(*address, leave_to_program), bytes};
  return cudaSuccess;
}

size_t memory_of_graphs() {
  std::lock_guard lock(memory().mutex);
  size_t bytes = 0;
  for (const auto& [begin, allocation] : memory().allocations)
    if (allocation.owner == Owner::kGraph) bytes += allocation.bytes;
  return bytes;
}

cudaError_t perform(const Allocate& allocate) {
  void* address = allocate.memory.get();
  std::unique_lock lock(memory().mutex);
  Allocation& allocation = memory().allocations.at(static_cast<char*>(address));
  if (allocation.owner == Owner::kGraph)
    return set_error(cudaErrorInvalidValue, "what the graph's last launch allocated is not freed");
  allocation.owner = Owner::kGraph;
  allow(address, allocation.bytes);
  trace::follow(address, allocation.bytes);
  lock.unlock();
  note_memory_of_graphs();
  return cudaSuccess;
}

void release_again(const Allocate& allocate) {
  std::unique_lock lock(memory().mutex);
  void* address = allocate.memory.get();
  if (memory().allocations.at(static_cast<char*>(address)).owner != Owner::kGraph) return;
  lock.unlock();
  release(address, cudaMemoryTypeDevice);
}

cudaError_t check(const Release& release) {
  std::lock_guard lock(memory().mutex);
  auto found = memory().allocations.find(static_cast<char*>(release.address));
  if (found != memory().allocations.end() && found->second.owner != Owner::kProgram)
    return cudaSuccess;
  return set_error(cudaErrorInvalidValue, "a graph frees only what a graph has allocated");
}
cudaError_t perform(const Release& release) {
  return release_device(release.address);
}

void refuse_freed_memory(const void* address, const std::string& what) {
  {
    std::lock_guard lock(memory().mutex);
    auto& freed = memory().freed;
    auto after = freed.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    if (after == freed.begin()) return;
    const auto& [begin, bytes] = *std::prev(after);
    if (address >= begin + bytes) return;
  }
  throw KernelError("CUDA on CPU: used after it was freed: memory that is used by " + what +
                    "\n  free it in the stream that uses it last, or wait for that stream first");
}

void forget_freed_memory() {
  std::lock_guard lock(memory().mutex);
  for (const auto& [address, bytes] : memory().freed) {
    allow(address, bytes);
    open_to_host(address);
    free(address);
  }
  memory().freed.clear();
}

std::pair<void*, size_t> pages_of_allocation(const void* address) {
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  if (!holder || holder->second.type != cudaMemoryTypeDevice ||
      holder->second.owner != Owner::kProgram)
    return {nullptr, 0};
  return {holder->first, (holder->second.bytes + kPage - 1) / kPage * kPage};
}

cudaError_t allocate_in_order(void** address, size_t bytes, cudaStream_t stream, bool& captured) {
  cudaError_t error = cudaSuccess;
  const Fate fate = nobody_captures() ? Fate::kRun : fate_of(stream, error);
  captured = fate == Fate::kRecord;
  if (fate == Fate::kRun) return allocate(address, bytes, cudaMemoryTypeDevice);
  if (!captured) return error;
  Allocate work;
  error = allocate_for_graph(address, bytes, work);
  return error == cudaSuccess && *address ? record(stream, work) : error;
}

}  // namespace cudacpu

using namespace cudacpu;

extern "C" {

void cudacpu_look_for_unset(int on) {
  looking_for_unset = on != 0;
}
// Return what look_for_unset has found, or "".
const char* cudacpu_unset_in_copy() {
  return unset_in_copy.c_str();
}

void cudacpu_refuse_host_pointers(int on) {
  host_pointers_refused.store(on);
}

// Return the number of allocations of the runtime API that are not freed yet.
size_t cudacpu_allocations() {
  std::lock_guard lock(memory().mutex);
  return memory().allocations.size();
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  return allocate_now("cudaMalloc", address, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  return allocate_now("cudaMallocHost", address, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  return allocate_now("cudaHostAlloc", address, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) {
  return allocate_now("cudaMallocManaged", address, bytes, cudaMemoryTypeManaged);
}

cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  if (cudaError_t error = refuse_unsafe("cudaMallocPitch"); error != cudaSuccess) return error;
  if (!pitch) return set_error(cudaErrorInvalidValue);
  *pitch = (width + kPitch - 1) / kPitch * kPitch;
  return allocate(address, *pitch * height, cudaMemoryTypeDevice);
}

cudaError_t cudaFree(void* address) {
  if (cudaError_t error = refuse_unsafe("cudaFree"); error != cudaSuccess) return error;
  if (!address) return cudaSuccess;
  const cudaError_t before = wait_for_all();  // as a GPU does
  const cudaError_t error = release_device(address);
  return error != cudaSuccess ? error : before;
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return submit(stream, Release{address});
}
cudaError_t cudaFreeHost(void* address) {
  if (cudaError_t error = refuse_unsafe("cudaFreeHost"); error != cudaSuccess) return error;
  if (!address) return cudaSuccess;
  const cudaError_t before = wait_for_all();
  const cudaError_t error = release(address, cudaMemoryTypeHost);
  return error != cudaSuccess ? error : before;
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  if (cudaError_t error = refuse_unsafe("cudaHostRegister"); error != cudaSuccess) return error;
  if (!address || !bytes) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(memory().mutex);
  memory().registered[static_cast<char*>(address)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  if (cudaError_t error = refuse_unsafe("cudaHostUnregister"); error != cudaSuccess) return error;
  if (!address) return set_error(cudaErrorInvalidValue);
  std::lock_guard lock(memory().mutex);
  memory().registered.erase(static_cast<char*>(address));
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  if (!device || !host) return set_error(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

// The location of managed memory has no effect here: these two only check their arguments.
cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation location,
                                 unsigned flags, cudaStream_t stream) {
  if (cudaError_t error = refuse_in_capture(stream, "cudaMemPrefetchAsync"); error != cudaSuccess)
    return error;
  if (flags != 0) return set_error(cudaErrorInvalidValue);
  return check_movable(address, bytes, location);
}
cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation location) {
  switch (advice) {
    case cudaMemAdviseSetReadMostly:
    case cudaMemAdviseUnsetReadMostly:
    case cudaMemAdviseUnsetPreferredLocation:
      location = {cudaMemLocationTypeHost, 0};  // it is ignored
      break;
    case cudaMemAdviseSetAccessedBy:
    case cudaMemAdviseUnsetAccessedBy:
      if (location.type != cudaMemLocationTypeDevice && location.type != cudaMemLocationTypeHost)
        return set_error(cudaErrorInvalidValue);
      break;
    case cudaMemAdviseSetPreferredLocation:
      break;
    default:
      return set_error(cudaErrorInvalidValue);
  }
  return check_movable(address, bytes, location);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  if (!attributes) return set_error(cudaErrorInvalidValue);
  *attributes = {};
  std::lock_guard lock(memory().mutex);
  const auto* holder = find(address);
  attributes->type = holder ? holder->second.type : cudaMemoryTypeUnregistered;
  attributes->device = holder ? 0 : -2;  // cudaInvalidDeviceId
  if (holder) {
    attributes->devicePointer = const_cast<void*>(address);
    if (holder->second.type != cudaMemoryTypeDevice)
      attributes->hostPointer = const_cast<void*>(address);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = refuse_variables(to, from, kind); error != cudaSuccess) return error;
  return submit_without_stream(row(to, from, bytes, kind), "cudaMemcpy");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (cudaError_t error = refuse_variables(to, from, kind); error != cudaSuccess) return error;
  return submit(stream, row(to, from, bytes, kind));
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return submit_without_stream(Copy{to, to_pitch, from, from_pitch, width, height, kind},
                               "cudaMemcpy2D");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return submit(stream, Copy{to, to_pitch, from, from_pitch, width, height, kind});
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return submit_without_stream(row(to, value, bytes), "cudaMemset");
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return submit(stream, row(to, value, bytes));
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
  return submit_without_stream(Fill{to, pitch, static_cast<unsigned>(value), 1, width, height},
                               "cudaMemset2D");
}
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return submit(stream, Fill{to, pitch, static_cast<unsigned>(value), 1, width, height});
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return submit_without_stream(row(in_symbol(symbol, offset), from, bytes, kind),
                               "cudaMemcpyToSymbol");
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return submit_without_stream(row(to, in_symbol(symbol, offset), bytes, kind),
                               "cudaMemcpyFromSymbol");
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return submit(stream, row(in_symbol(symbol, offset), from, bytes, kind));
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  if (!symbol) return set_error(cudaErrorInvalidSymbol);
  return submit(stream, row(to, in_symbol(symbol, offset), bytes, kind));
}
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  if (!address || !symbol) return set_error(cudaErrorInvalidSymbol);
  *address = const_cast<void*>(symbol);
  return cudaSuccess;
}

}  // extern "C"
