#include "src/model/ragged_batch.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::model {

void RaggedBatch::clear() {
  token_ids_.clear();
  positions_.clear();
  sequence_of_token_.clear();
  feature_rows_.clear();
  features_.clear();
  query_begin_.assign(1, 0);
  context_lengths_.clear();
  pages_.clear();
  pages_begin_.clear();
}

std::int32_t RaggedBatch::add(std::span<const std::int32_t> ids, std::int64_t first_position,
                              std::span<const std::int32_t> pages) {
  const std::int64_t end = first_position + static_cast<std::int64_t>(ids.size());
  if (static_cast<std::int64_t>(pages.size()) * ops::page_tokens < end) {
    fail_internal("a sequence of {} tokens has {} pages", end, pages.size());
  }
  const std::int32_t row = tokens();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    token_ids_.push_back(ids[i]);
    positions_.push_back(static_cast<std::int32_t>(first_position + static_cast<std::int64_t>(i)));
    sequence_of_token_.push_back(sequences());
  }
  query_begin_.push_back(tokens());
  context_lengths_.push_back(static_cast<std::int32_t>(end));
  pages_begin_.push_back(pages_.size());
  pages_.insert(pages_.end(), pages.begin(), pages.end());
  return row;
}

std::int32_t RaggedBatch::add(std::span<const std::int32_t> ids, std::int64_t first_position,
                              std::span<const std::int32_t> pages, std::span<const FeatureRun> features,
                              std::int64_t row_bytes) {
  const std::int32_t row = add(ids, first_position, pages);
  const std::int64_t end = first_position + static_cast<std::int64_t>(ids.size());
  for (const FeatureRun& run : features) {
    const std::int64_t begin = std::max(run.first, first_position);
    const std::int64_t count = std::min(run.first + run.count, end) - begin;
    if (count <= 0) continue;
    feature_rows_.resize(static_cast<std::size_t>(row + begin - first_position), -1);
    auto next = static_cast<std::int32_t>(static_cast<std::int64_t>(features_.size()) / row_bytes);
    for (std::int64_t i = 0; i < count; ++i) feature_rows_.push_back(next++);
    const std::byte* from = run.rows + (begin - run.first) * row_bytes;
    features_.insert(features_.end(), from, from + count * row_bytes);
  }
  return row;
}

ops::Batch RaggedBatch::view() {
  std::size_t stride = 1;
  const auto page_count = [&](std::size_t s) {
    return (s + 1 < pages_begin_.size() ? pages_begin_[s + 1] : pages_.size()) - pages_begin_[s];
  };
  for (std::size_t s = 0; s < pages_begin_.size(); ++s) stride = std::max(stride, page_count(s));
  page_table_.assign(pages_begin_.size() * stride, -1);
  for (std::size_t s = 0; s < pages_begin_.size(); ++s) {
    std::copy_n(pages_.begin() + static_cast<std::ptrdiff_t>(pages_begin_[s]), page_count(s),
                page_table_.begin() + static_cast<std::ptrdiff_t>(s * stride));
  }
  ops::Batch batch;
  batch.tokens = tokens();
  batch.sequences = sequences();
  batch.token_ids = token_ids_.data();
  batch.positions = positions_.data();
  batch.sequence_of_token = sequence_of_token_.data();
  batch.query_begin = query_begin_.data();
  batch.context_lengths = context_lengths_.data();
  batch.page_table = page_table_.data();
  batch.page_table_stride = static_cast<std::int32_t>(stride);
  batch.index_page_table = page_table_.data();
  for (std::int32_t s = 0; s < batch.sequences; ++s) {
    batch.longest_query = std::max(batch.longest_query, batch.query_begin[s + 1] - batch.query_begin[s]);
    batch.longest_context = std::max(batch.longest_context, batch.context_lengths[s]);
  }
  if (!features_.empty()) {
    feature_rows_.resize(token_ids_.size(), -1);
    batch.feature_rows = feature_rows_.data();
    batch.features = features_.data();
  }
  return batch;
}

}  // namespace m3::model
