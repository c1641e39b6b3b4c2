// Findings of the tracer, as JSON: common/cpu/findings.py adds lines and sentences.
#include "tracer.h"

#include <dlfcn.h>

namespace cudacpu::trace {

namespace {

struct LaunchedKernel {
  std::string name;
  std::string launched_at;
  unsigned threads;     // of a block
  size_t shared_bytes;  // the dynamic part
  bool operator==(const LaunchedKernel&) const = default;
};
std::vector<LaunchedKernel>& kernels() {
  static auto& instance = *new std::vector<LaunchedKernel>;
  return instance;
}

std::string code_as_json(const void* return_address) {
  Dl_info info;
  if (!return_address || !dladdr(return_address, &info)) return "null";
  // The call is before the address to which it returns.
  auto offset =
      static_cast<const char*>(return_address) - static_cast<const char*>(info.dli_fbase) - 1;
  return "[" + quoted(library_at(return_address)) + format(", %zu]", static_cast<size_t>(offset));
}

std::string sites_as_json() {
  std::string text = "[";
  for (size_t i = 0; i < number_of_sites(); ++i) {
    const AccessSite& site = site_at(static_cast<uint32_t>(i));
    text += i ? ", " : "";
    text +=
        site.source.file
            ? "{\"file\": " + quoted(site.source.file) + format(", \"line\": %d}", site.source.line)
            : "{\"code\": [" + code_as_json(site.pc) + ", " + code_as_json(site.caller) + "]}";
  }
  return text + "]";
}

}  // namespace

// Return the kernel's number, kept while the launch lasts: every request needs it.
uint32_t kernel_number() {
  static uint32_t number, of_launch;
  if (of_launch == traced.number) return number;
  const Launch& launch = *traced.launch;
  const char* signature = launch.signature.load();  // the launch may only know a pointer's name
  const char* name = signature ? signature : launch.site.kernel;
  LaunchedKernel kernel{name ? name : "(unknown)",
                        format("%s:%d", launch.site.file, launch.site.line), launch.threads,
                        launch.config.shared_bytes};
  auto found = std::find(kernels().begin(), kernels().end(), kernel);
  number = static_cast<uint32_t>(found - kernels().begin());
  if (found == kernels().end()) kernels().push_back(std::move(kernel));
  of_launch = traced.number;
  return number;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
    result += c;
  }
  return result + "\"";
}

}  // namespace cudacpu::trace

// Return everything since the last call. The text is valid until the next one.
extern "C" const char* cudacpu_take_trace() {
  using namespace cudacpu::trace;
  static std::string text;
  std::string names;
  text = "{\"findings\": " + races_as_json() + ", \"counts\": " + counts_as_json();
  for (const LaunchedKernel& kernel : kernels())
    names +=
        (names.empty() ? "" : ", ") + std::string("{\"name\": ") + quoted(kernel.name) +
        ", \"launched_at\": " + quoted(kernel.launched_at) +
        format(", \"threads\": %u, \"shared_bytes\": %zu}", kernel.threads, kernel.shared_bytes);
  text += ", \"launches\": " + launches_as_json();
  text += ", \"kernels\": [" + names + "], \"sites\": " + sites_as_json() + "}";
  return text.c_str();
}
