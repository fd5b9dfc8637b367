#include "src/model/batch_upload.h"

#include <algorithm>
#include <bit>

#include "src/base/error.h"

namespace m3::model {

namespace {

constexpr std::int64_t array_alignment = 32;  // of every array, in words: 128 bytes
constexpr std::int64_t least_stride = 64;     // pages of a row in a pass that is played again: contexts up to 8192

std::int64_t aligned(std::int64_t words) { return (words + array_alignment - 1) / array_alignment * array_alignment; }

std::int64_t repeated_stride(std::int64_t pages) {
  return std::max(least_stride, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(pages))));
}

// Of the arrays; features follow.
std::int64_t array_bytes(const ops::Limits& limits) {
  const std::int64_t pages = (limits.context + ops::page_tokens - 1) / ops::page_tokens;
  return 4 *
         (3 * aligned(limits.tokens) + 2 * aligned(limits.sequences + 1) + aligned(limits.logits_rows) +
          aligned(limits.sequences * repeated_stride(pages)) + aligned(limits.feature_rows > 0 ? limits.tokens : 0));
}

}  // namespace

std::int64_t BatchUpload::bytes(const ops::Limits& limits, DType activation) {
  return array_bytes(limits) + limits.feature_rows * limits.hidden * static_cast<std::int64_t>(dtype_size(activation));
}

// The numbers of rows go with the arrays, the rows behind them.
void BatchUpload::add_features(ops::Backend& backend, const ops::Batch& host, ops::Batch& batch) {
  const std::int32_t rows = *std::max_element(host.feature_rows, host.feature_rows + host.tokens) + 1;
  if (rows > limits_.feature_rows)
    fail_internal("a batch with {} rows of features, planned for {}", rows, limits_.feature_rows);
  const auto begin = static_cast<std::int64_t>(packed_.size());
  packed_.insert(packed_.end(), host.feature_rows, host.feature_rows + host.tokens);
  packed_.resize(static_cast<std::size_t>(begin + aligned(host.tokens)));
  batch.feature_rows = reinterpret_cast<const std::int32_t*>(memory_) + begin;
  std::byte* to = memory_ + array_bytes(limits_);
  const auto row_bytes = limits_.hidden * static_cast<std::int64_t>(dtype_size(backend.activation_dtype()));
  backend.upload(to, {host.features, static_cast<std::size_t>(rows * row_bytes)});
  batch.features = to;
}

BatchUpload::Uploaded BatchUpload::upload(ops::Backend& backend, const ops::Batch& host_batch,
                                          std::span<const std::int32_t> logits_rows, bool repeatable) {
  const ops::Batch& host = host_batch;
  if (host.index_page_table != host.page_table) fail_internal("index-K that is resident elsewhere");
  repeatable = repeatable && host.longest_query == 1 && host.tokens == host.sequences && host.features == nullptr;
  const std::int64_t stride =
      repeatable ? repeated_stride(host.page_table_stride) : std::int64_t{host.page_table_stride};

  packed_.clear();
  const auto add = [&](const std::int32_t* values, std::int64_t count) {
    const auto begin = static_cast<std::int64_t>(packed_.size());
    packed_.insert(packed_.end(), values, values + count);
    packed_.resize(static_cast<std::size_t>(begin + aligned(count)));
    return reinterpret_cast<const std::int32_t*>(memory_) + begin;
  };
  Uploaded up;
  up.batch = host;
  up.batch.token_ids = add(host.token_ids, host.tokens);
  up.batch.positions = add(host.positions, host.tokens);
  up.batch.sequence_of_token = add(host.sequence_of_token, host.tokens);
  up.batch.query_begin = add(host.query_begin, host.sequences + 1);
  up.batch.context_lengths = add(host.context_lengths, host.sequences);
  up.logits_rows = {add(logits_rows.data(), std::ssize(logits_rows)), logits_rows.size()};
  const auto table = static_cast<std::int64_t>(packed_.size());
  packed_.resize(static_cast<std::size_t>(table + aligned(host.sequences * stride)), -1);
  for (std::int64_t s = 0; s < host.sequences; ++s) {
    std::copy_n(host.page_table + s * host.page_table_stride, host.page_table_stride,
                packed_.begin() + table + s * stride);
  }
  up.batch.page_table = up.batch.index_page_table = reinterpret_cast<const std::int32_t*>(memory_) + table;
  up.batch.page_table_stride = static_cast<std::int32_t>(stride);
  if (host.features != nullptr) add_features(backend, host, up.batch);
  if (repeatable) {
    up.batch.longest_context = static_cast<std::int32_t>(stride) * ops::page_tokens;
    up.key = std::uint64_t{1} << 63 | static_cast<std::uint64_t>(host.tokens) << 32 |
             static_cast<std::uint64_t>(logits_rows.size()) << 8 |
             static_cast<std::uint64_t>(std::countr_zero(static_cast<std::uint64_t>(stride)));
  } else {
    up.batch.host = &host_batch;
  }
  if (std::ssize(packed_) * 4 > array_bytes(limits_))
    fail_internal("a batch of {} words, planned for {} bytes", packed_.size(), array_bytes(limits_));
  backend.upload(memory_, std::as_bytes(std::span(packed_)));
  return up;
}

}  // namespace m3::model
