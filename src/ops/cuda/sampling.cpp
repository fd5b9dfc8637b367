// Sampling: the rows' numbers and lists go up in one copy, the drawn ids and flags come down in one behind the kernel.
#include <algorithm>
#include <cstring>

#include "src/base/error.h"
#include "src/ops/cuda/backend.h"
#include "src/ops/host/host_backend.h"

namespace m3::ops::cuda {

namespace {

bool counts_tokens(const SamplingRow& row) {
  return row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
}

// Appends the bytes of lists behind one another, and says where each will lie on the device.
class Lists {
 public:
  explicit Lists(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  template <typename T>
  std::size_t add(std::span<const T> values) {
    const std::size_t at = bytes_.size();
    bytes_.resize((at + values.size_bytes() + 15) / 16 * 16);
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }

 private:
  std::vector<std::byte>& bytes_;
};

}  // namespace

// Runs of rows come up as one copy each, ahead of the draw on the stream; end_sample's wait is theirs too.
void CudaBackend::keep_raw(const Tensor& logits, std::span<const SamplingRow> rows) {
  raw_columns_ = static_cast<std::size_t>(logits.columns);
  raw_row_.assign(rows.size(), nullptr);
  const auto kept = static_cast<std::size_t>(std::ranges::count_if(rows, &SamplingRow::keep_raw));
  if (kept == 0) return;
  auto* to = reinterpret_cast<float*>(raw_.reserve(kept * raw_columns_ * sizeof(float)));
  for (std::size_t row = 0; row < rows.size();) {
    std::size_t run = 0;
    for (; row + run < rows.size() && rows[row + run].keep_raw; ++run) raw_row_[row + run] = to + run * raw_columns_;
    if (run > 0) {
      const std::size_t width = raw_columns_ * sizeof(float);
      check(cudaMemcpy2DAsync(to, width, logits.row(static_cast<std::int64_t>(row)),
                              static_cast<std::size_t>(logits.row_stride) * sizeof(float), width, run,
                              cudaMemcpyDeviceToHost, stream_),
            "a copy of logits from the GPU");
      to += run * raw_columns_;
    }
    row += run + 1;
  }
}

std::span<const float> CudaBackend::raw_logits(std::int64_t row) const {
  return {raw_row_[static_cast<std::size_t>(row)], raw_columns_};
}

void CudaBackend::begin_sample(const Tensor& logits, std::span<const SamplingRow> rows) {
  const auto count = std::ssize(rows);
  check_tensor(logits, DType::f32, count, 1, "sample");
  if (count > limits_.logits_rows || logits.columns > limits_.vocab) {
    fail_internal("sample: [{}, {}] logits, planned for [{}, {}]", count, logits.columns, limits_.logits_rows,
                  limits_.vocab);
  }
  sampling_ = count;
  if (count == 0) return;
  keep_raw(logits, rows);
  std::vector<std::byte> bytes;
  Lists lists(bytes);
  struct Offsets {
    std::size_t prompt = 0, output = 0, bias = 0, allowed = 0;
  };
  std::vector<Offsets> offsets;
  for (const SamplingRow& row : rows) {
    Offsets& at = offsets.emplace_back();
    if (counts_tokens(row)) {
      if (row.repetition_penalty != 1) at.prompt = lists.add(row.prompt_ids);
      at.output = lists.add(row.output_ids);
    }
    at.bias = lists.add(row.logit_bias);
    // One mask serves many rows: the vocabulary's own.
    const auto same = std::ranges::find_if(rows.first(offsets.size() - 1), [&](const SamplingRow& other) {
      return other.allowed.data() == row.allowed.data() && other.allowed.size() == row.allowed.size();
    });
    const auto known = static_cast<std::size_t>(same - rows.begin());
    at.allowed = known + 1 < offsets.size() ? offsets[known].allowed : lists.add(row.allowed);
  }
  const std::size_t rows_at = bytes.size();
  std::byte* device = sample_lists_.reserve(rows_at + (rows.size() + 1) * sizeof(SampleRow));
  std::vector<SampleRow> launch;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const SamplingRow& row = rows[i];
    const bool counting = counts_tokens(row);
    SampleRow& to = launch.emplace_back();
    to.temperature = row.temperature;
    to.top_p = row.top_p;
    to.min_p = row.min_p;
    to.repetition_penalty = row.repetition_penalty;
    to.presence_penalty = row.presence_penalty;
    to.frequency_penalty = row.frequency_penalty;
    to.top_k = row.top_k;
    to.sample = row.sample;
    to.seed = row.seed;
    to.position = row.position;
    to.prompt_ids = reinterpret_cast<const std::int32_t*>(device + offsets[i].prompt);
    to.output_ids = reinterpret_cast<const std::int32_t*>(device + offsets[i].output);
    to.prompt_count = counting ? static_cast<std::int32_t>(row.prompt_ids.size()) : 0;
    to.output_count = counting ? static_cast<std::int32_t>(row.output_ids.size()) : 0;
    to.bias = reinterpret_cast<const SamplingRow::Bias*>(device + offsets[i].bias);
    to.bias_count = static_cast<std::int32_t>(row.logit_bias.size());
    to.allowed_words = row.allowed.empty() ? -1 : static_cast<std::int32_t>(row.allowed.size());
    to.allowed = reinterpret_cast<const std::uint32_t*>(device + offsets[i].allowed);
  }
  lists.add(std::span<const SampleRow>(launch));
  upload(device, bytes);
  check(launch_sample(reinterpret_cast<float*>(logits.data), logits.row_stride, static_cast<int>(logits.columns),
                      reinterpret_cast<const SampleRow*>(device + rows_at), static_cast<int>(count), token_counts_,
                      sampled_, finite_, stream_),
        "sample");
  // ids of all rows that may be, then flags: they come down in one copy.
  const std::size_t needed =
      static_cast<std::size_t>(limits_.logits_rows) * sizeof(std::int32_t) + static_cast<std::size_t>(count);
  if (results_size_ < needed) {
    check(cudaFreeHost(results_), "freeing pinned memory");
    results_ = nullptr;
    void* memory = nullptr;
    results_size_ = needed * 2;
    check_pinned(cudaMallocHost(&memory, results_size_));
    results_ = static_cast<std::byte*>(memory);
  }
  check(cudaMemcpyAsync(results_, sampled_, needed, cudaMemcpyDeviceToHost, stream_), "sample");
  check(cudaEventRecord(sampled_event_, stream_), "recording an event");
}

void CudaBackend::end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) {
  if (std::ssize(ids) < sampling_) fail_internal("sample: {} rows, {} ids", sampling_, ids.size());
  if (sampling_ == 0) return;
  // Not for the stream: the next step may be queued behind the draw already.
  check(cudaEventSynchronize(sampled_event_), "waiting for a draw");
  const auto count = static_cast<std::size_t>(sampling_);
  std::memcpy(ids.data(), results_, count * sizeof(std::int32_t));
  const auto flags = static_cast<std::size_t>(limits_.logits_rows) * sizeof(std::int32_t);
  if (!finite.empty()) std::memcpy(finite.data(), results_ + flags, count);
}

}  // namespace m3::ops::cuda
