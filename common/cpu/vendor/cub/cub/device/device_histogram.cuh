// Histograms.
#pragma once

#include <cub/device/run.cuh>

namespace cub {

struct DeviceHistogram {
  // levels - 1 bins of one width, from lower to below upper. Other samples are not counted.
  template <class Samples, class Counter, class Level>
  static cudaError_t HistogramEven(void* temporary, size_t& temporary_bytes, Samples samples,
                                   Counter* histogram, int levels, Level lower, Level upper,
                                   int64_t n, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      for (int bin = 0; bin < levels - 1; ++bin) histogram[bin] = 0;
      for (int64_t i = 0; i < n; ++i) {
        const Level sample = samples[i];
        if (!(lower <= sample && sample < upper)) continue;
        const double part =
            (static_cast<double>(sample) - lower) / (static_cast<double>(upper) - lower);
        const int bin = static_cast<int>(part * (levels - 1));
        ++histogram[bin < levels - 1 ? bin : levels - 2];
      }
    });
  }
  // Bin i holds the samples from boundaries[i] to below boundaries[i + 1].
  template <class Samples, class Counter, class Level>
  static cudaError_t HistogramRange(void* temporary, size_t& temporary_bytes, Samples samples,
                                    Counter* histogram, int levels, const Level* boundaries,
                                    int64_t n, cudaStream_t stream = nullptr) {
    return detail::run(temporary, temporary_bytes, stream, [=] {
      for (int bin = 0; bin < levels - 1; ++bin) histogram[bin] = 0;
      for (int64_t i = 0; i < n; ++i)
        for (int bin = 0; bin < levels - 1; ++bin)
          if (boundaries[bin] <= samples[i] && samples[i] < boundaries[bin + 1]) ++histogram[bin];
    });
  }
};

}  // namespace cub
