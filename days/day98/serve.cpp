// Day 98: a program that runs a compiled model. It has no Python in it.
//
//   serve MODEL OPERATORS INPUT OUTPUT [CALLS]
//
// MODEL is a .pt2 of AOTInductor, OPERATORS the library of our operators, or - for none. INPUT and
// OUTPUT are files as torch.save writes them. The model is called CALLS times, 20 by default. A
// mistake ends the program with a line on stderr and exit code 1.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "program.h"

namespace {

at::Tensor read_tensor(const std::string& path) {
  std::ifstream file = open_file("input", path);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  c10::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "input: ", path, " is no file of torch.save");
  }
  TORCH_CHECK(value.isTensor(), "input: ", path, " holds no tensor");
  return value.toTensor();
}

void write_tensor(const std::string& path, const at::Tensor& tensor) {
  const std::vector<char> bytes = torch::jit::pickle_save(tensor);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TORCH_CHECK(file.good(), "output: cannot write ", path);
}

// The compiled model trusts its caller: it takes pointers and reads as far as it was compiled to.
void check_input(const at::Tensor& u, int64_t width, int64_t most) {
  TORCH_CHECK(u.scalar_type() == at::kFloat, "input: expected float32, got ", u.scalar_type());
  TORCH_CHECK(u.dim() == 2 && u.size(1) == width, "input: expected shape (rows, ", width, "), got ",
              u.sizes());
  TORCH_CHECK(u.size(0) >= 1 && u.size(0) <= most, "input: expected 1 to ", most, " rows, got ",
              u.size(0));
}

double milliseconds(std::chrono::steady_clock::time_point since) {
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - since;
  return passed.count();
}

void serve(const std::vector<std::string>& arguments) {
  TORCH_CHECK(arguments.size() == 4 || arguments.size() == 5,
              "usage: serve MODEL OPERATORS INPUT OUTPUT [CALLS]");
  const int calls = arguments.size() == 5 ? std::atoi(arguments[4].c_str()) : 20;
  TORCH_CHECK(calls >= 1, "CALLS: expected a number from 1 on, got ", arguments[4]);
  const c10::InferenceMode no_gradients;

  auto since = std::chrono::steady_clock::now();
  load_operators(arguments[1]);
  open_file("model", arguments[0]);
  torch::inductor::AOTIModelPackageLoader model(arguments[0]);
  const auto metadata = model.get_metadata();
  const at::Device device(entry_of(metadata, "AOTI_DEVICE_KEY"));
  std::printf("load %.3f\n", milliseconds(since));

  const at::Tensor u = read_tensor(arguments[2]).contiguous();
  check_input(u, std::stoll(entry_of(metadata, "width")), std::stoll(entry_of(metadata, "most")));
  // From the host and back: the copy to the host also waits for the GPU.
  const auto call = [&] { return model.run({u.to(device)}).at(0).cpu(); };
  since = std::chrono::steady_clock::now();
  at::Tensor y = call();
  std::printf("first %.3f\n", milliseconds(since));
  since = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) y = call();
  std::printf("call %.3f\n", milliseconds(since) / calls);
  write_tensor(arguments[3], y);
}

}  // namespace

int main(int count, char** words) {
  return exit_code(serve, count, words);
}
