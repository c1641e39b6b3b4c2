// Day 98: what its two programs share: files, the library of our operators, the end by a mistake.

#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/Exception.h>

inline std::ifstream open_file(const char* what, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.good(), what, ": cannot read ", path);
  return file;
}

// The static initialisers of the library register its operators with the dispatcher.
inline void load_operators(const std::string& path) {
  if (path == "-") return;
  TORCH_CHECK(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL), "operators: ", dlerror());
}

// An entry of a .pt2's metadata.
inline std::string entry_of(const std::unordered_map<std::string, std::string>& metadata,
                            const std::string& name) {
  const auto found = metadata.find(name);
  TORCH_CHECK(found != metadata.end(), "model: its metadata has no ", name);
  return found->second;
}

// Returns the exit code: 1 after a mistake, with a line on stderr.
inline int exit_code(void program(const std::vector<std::string>&), int count, char** words) {
  try {
    program({words + 1, words + count});
    return 0;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}
