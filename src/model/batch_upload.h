// A batch in a device's memory: packed into one block, brought there in one copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/ops/ops.h"

namespace m3::model {

class BatchUpload {
 public:
  // Of the device: what a batch within the limits takes at most.
  static std::int64_t bytes(const ops::Limits& limits, DType activation);
  void bind(std::byte* memory, const ops::Limits& limits) { memory_ = memory, limits_ = limits; }

  struct Uploaded {
    ops::Batch batch;  // arrays in the device's memory, valid until the next call, as is batch.host
    std::span<const std::int32_t> logits_rows;
    // Of decode passes: equal only where all addresses, shapes and bounds are. Else 0.
    std::uint64_t key = 0;
  };
  // `repeatable`: a batch of one token a sequence gets a key, a row of pages of a power of two, and no `host`.
  // `host_batch` must live as long as the result; a batch with features is not repeatable. Errors (internal): a batch
  // beyond the limits.
  Uploaded upload(ops::Backend& backend, const ops::Batch& host_batch, std::span<const std::int32_t> logits_rows,
                  bool repeatable);

 private:
  void add_features(ops::Backend& backend, const ops::Batch& host, ops::Batch& batch);

  std::byte* memory_ = nullptr;
  ops::Limits limits_;
  std::vector<std::int32_t> packed_;
};

}  // namespace m3::model
