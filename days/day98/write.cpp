// Day 98: a program that writes text by day 86's GPT of characters. It has no Python in it.
//
//   write MODEL OPERATORS PROMPT [COUNT] [TEMPERATURE] [SEED]
//
// MODEL is a .pt2 of build.py, OPERATORS the library of day 86's operators. COUNT characters (200)
// follow the prompt, drawn with TEMPERATURE (0.8; 0 takes the most likely one) and SEED (1). A
// mistake ends the program with a line on stderr and exit code 1.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "program.h"

namespace {

template <typename Number>
Number read_number(const char* name, const std::string& text, Number least, Number most) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool whole = error == std::errc() && stop == end;
  TORCH_CHECK(whole && value >= least && value <= most, name, ": expected ", least, " to ", most,
              ", got ", text);
  return value;
}

// The characters of a text in UTF-8. All bytes of one but its first begin with the bits 10.
std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> characters;
  for (const char byte : text) {
    if (characters.empty() || (byte & 0xC0) != 0x80) characters.emplace_back();
    characters.back() += byte;
  }
  return characters;
}

// Token i is character i of the vocabulary.
std::vector<int64_t> encode(const std::string& text, const std::vector<std::string>& vocabulary) {
  std::vector<int64_t> tokens;
  for (const std::string& character : characters_of(text)) {
    const auto found = std::find(vocabulary.begin(), vocabulary.end(), character);
    TORCH_CHECK(found != vocabulary.end(), "PROMPT: '", character,
                "' is no character of the model");
    tokens.push_back(found - vocabulary.begin());
  }
  return tokens;
}

// logits: of the next token, in float64 on the host.
int64_t draw(const double* logits, size_t count, double temperature, std::mt19937_64& random) {
  const double* most = std::max_element(logits, logits + count);
  TORCH_CHECK(std::isfinite(*most), "model: its logits are not finite");
  if (temperature == 0) return most - logits;
  std::vector<double> weights(count);  // discrete_distribution divides by their sum
  for (size_t i = 0; i < count; ++i) weights[i] = std::exp((logits[i] - *most) / temperature);
  return std::discrete_distribution<int64_t>(weights.begin(), weights.end())(random);
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  TORCH_CHECK(std::fflush(stdout) == 0, "stdout: cannot write");
}

void write_text(const std::vector<std::string>& arguments) {
  TORCH_CHECK(arguments.size() >= 3 && arguments.size() <= 6,
              "usage: write MODEL OPERATORS PROMPT [COUNT] [TEMPERATURE] [SEED]");
  const auto optional = [&](size_t i, const char* otherwise) {
    return i < arguments.size() ? arguments[i] : otherwise;
  };
  const auto count = read_number<int64_t>("COUNT", optional(3, "200"), 0, 1'000'000'000);
  const auto temperature = read_number<double>("TEMPERATURE", optional(4, "0.8"), 0, 1000);
  std::mt19937_64 random(read_number<uint64_t>("SEED", optional(5, "1"), 0, UINT64_MAX));
  TORCH_CHECK(!arguments[2].empty(), "PROMPT: expected at least one character");
  const c10::InferenceMode no_gradients;

  load_operators(arguments[1]);
  open_file("model", arguments[0]);
  torch::inductor::AOTIModelPackageLoader model(arguments[0]);
  const auto metadata = model.get_metadata();
  const at::Device device(entry_of(metadata, "AOTI_DEVICE_KEY"));
  const auto positions = static_cast<size_t>(std::stoll(entry_of(metadata, "positions")));
  const auto vocabulary = characters_of(entry_of(metadata, "characters"));

  std::vector<int64_t> tokens = encode(arguments[2], vocabulary);
  print(arguments[2]);
  for (int64_t i = 0; i < count; ++i) {
    const size_t length = std::min(tokens.size(), positions);  // the window: the last ones
    const at::Tensor window = at::from_blob(tokens.data() + tokens.size() - length,
                                            {1, static_cast<int64_t>(length)}, at::kLong);
    const at::Tensor logits = model.run({window.to(device)}).at(0);  // (1, length, words)
    const at::Tensor last = logits.select(1, -1).to(at::kCPU, at::kDouble).contiguous();
    tokens.push_back(draw(last.const_data_ptr<double>(), vocabulary.size(), temperature, random));
    print(vocabulary[static_cast<size_t>(tokens.back())]);
  }
  print("\n");
}

}  // namespace

int main(int count, char** words) {
  return exit_code(write_text, count, words);
}
