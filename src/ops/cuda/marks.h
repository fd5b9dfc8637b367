// When operations end on the device: what `m3 bench --profile` shows.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace m3::ops::cuda {

class Marks {
 public:
  Marks() = default;
  ~Marks();
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Holds the stream for some milliseconds, so that the host gets ahead and gaps between launches do not count; then the
  // first mark.
  void begin(cudaStream_t stream);
  void add(cudaStream_t stream);
  // Seconds between each mark and the next since begin(). Waits.
  std::vector<double> take();

 private:
  std::vector<cudaEvent_t> events_;  // made once, used again
  std::size_t used_ = 0;
};

}  // namespace m3::ops::cuda
