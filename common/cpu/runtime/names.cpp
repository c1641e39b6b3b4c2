// Names of memory for messages: tensors by their names in Python, __shared__ variables by their
// declarations.
#include "runtime.h"

namespace cudacpu {

namespace {

struct NamedMemory {
  uintptr_t begin;
  size_t bytes;
  size_t element;  // bytes; 0 if unknown
  std::string name;
  bool lasts = false;  // a variable of a kernel file: forget_names() keeps it

  // Return the distance of an address from this memory; 0 within.
  size_t distance(uintptr_t address) const {
    if (address < begin) return begin - address;
    return address < begin + bytes ? 0 : address - (begin + bytes) + 1;
  }
};

constexpr size_t kNear = 64 * 1024;  // bytes; what lies farther off is not what was meant

std::mutex names_mutex;
std::vector<NamedMemory> names;

// Return "index 3 of x", or the distance of the bytes from x.
std::string place(const NamedMemory& memory, uintptr_t address, size_t bytes) {
  const char* name = memory.name.c_str();
  auto offset = static_cast<std::ptrdiff_t>(address - memory.begin);
  auto element = static_cast<std::ptrdiff_t>(memory.element);
  bool counts = element && offset % element == 0;
  const char* from = counts && bytes > memory.element ? "from " : "";
  const size_t elements = memory.element ? memory.bytes / memory.element : 0;
  std::string outside = counts ? format(": %sindex %td, and it has %zu element%s", from,
                                        offset / element, elements, elements == 1 ? "" : "s")
                               : "";
  if (address < memory.begin)
    return in_bytes(static_cast<size_t>(-offset)) + " before the start of " + name + outside;
  size_t end = static_cast<size_t>(offset) + bytes;
  if (end > memory.bytes)
    return in_bytes(end - memory.bytes) + " beyond the end of " + name + outside;
  return counts ? format("%sindex %td of %s", from, offset / element, name)
                : format("byte %td of %s", offset, name);
}

const NamedMemory* nearest(const std::vector<NamedMemory>& all, uintptr_t address) {
  const NamedMemory* best = nullptr;
  for (const NamedMemory& memory : all)  // later ones first: older memory may have been freed
    if (!best || memory.distance(address) <= best->distance(address)) best = &memory;
  return best && best->distance(address) < kNear ? best : nullptr;
}

}  // namespace

std::string describe_shared(const ResidentBlock& block, const void* pointer, size_t bytes) {
  std::vector<NamedMemory> variables;
  auto arena = reinterpret_cast<uintptr_t>(block.arena);
  worker->each_shared_variable([&](size_t offset, size_t size, const char* declaration) {
    variables.push_back({arena + offset, size, 0, format("__shared__ %s", declaration)});
  });
  const NamedMemory* found = nearest(variables, reinterpret_cast<uintptr_t>(pointer));
  if (!found) return "shared memory outside of all variables";
  return place(*found, reinterpret_cast<uintptr_t>(pointer), bytes);
}

std::string describe_address(const void* pointer, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  if (const ResidentBlock* owner = current ? block_around(pointer) : nullptr) {
    const uint3& i = owner->index;
    return describe_shared(*owner, pointer, bytes) +
           (owner == current->block ? "" : format(" of block (%u,%u,%u)", i.x, i.y, i.z));
  }
  std::lock_guard lock(names_mutex);
  const NamedMemory* found = nearest(names, address);
  return found ? place(*found, address, bytes) : "";
}

void name_variable(const void* begin, size_t bytes, const char* name) {
  std::lock_guard lock(names_mutex);
  names.push_back({reinterpret_cast<uintptr_t>(begin), bytes, 0, name, true});
}

}  // namespace cudacpu

extern "C" {

void cudacpu_name_memory(uintptr_t begin, size_t bytes, size_t element, const char* name) {
  std::lock_guard lock(cudacpu::names_mutex);
  cudacpu::names.push_back({begin, bytes, element, name});
}

void cudacpu_forget_names() {
  std::lock_guard lock(cudacpu::names_mutex);
  std::erase_if(cudacpu::names, [](const auto& memory) { return !memory.lasts; });
}

}  // extern "C"
