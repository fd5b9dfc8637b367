#include "tests/support/device_judge.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace m3::test {

DeviceJudge::DeviceJudge(std::unique_ptr<ops::Backend> inner, std::int64_t memory_bytes, Counts* counts)
    : inner_(std::move(inner)), total_bytes_(memory_bytes), counts_(counts != nullptr ? counts : &own_counts_) {}

// Filled with what no result may depend on: NaN as floats, -1 as ids.
ops::Memory DeviceJudge::allocate(std::int64_t bytes) {
  if (bytes > total_bytes_ - used_bytes_) fail_resource("the walled memory has no {} bytes left", bytes);
  const std::size_t size = (static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)) + 4095) / 4096 * 4096;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_resource("no memory for a test");
  std::memset(memory, 0xff, size);
  ::mprotect(memory, size, PROT_NONE);
  auto* data = static_cast<std::byte*>(memory);
  blocks_.emplace(data, size);
  used_bytes_ += bytes;
  return {data, static_cast<std::size_t>(bytes), [this, size](std::byte* block, std::size_t own) {
            blocks_.erase(block);
            used_bytes_ -= static_cast<std::int64_t>(own);
            ::munmap(block, size);
          }};
}

void DeviceJudge::protect(bool open) {
  for (const auto& [data, size] : blocks_) {
    if (::mprotect(data, size, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) fail_internal("mprotect");
  }
}

void DeviceJudge::operate(Operation operation) {
  protect(true);
  operation();
  protect(false);
  if (recording_ != nullptr) recording_->push_back(std::move(operation));
}

void DeviceJudge::check(const void* data, std::int64_t bytes, const char* what) const {
  auto* address = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  const auto after = blocks_.upper_bound(address);
  const bool inside = after != blocks_.begin() &&
                      address + bytes <= std::prev(after)->first + static_cast<std::int64_t>(std::prev(after)->second);
  if (!inside) fail_internal("{}: {} bytes that do not lie in the device's memory", what, bytes);
}

void DeviceJudge::check(const ops::Tensor& tensor, const char* what) const {
  if (tensor.empty() || tensor.rows == 0) return;
  check(tensor.data,
        ((tensor.rows - 1) * tensor.row_stride + tensor.columns) * static_cast<std::int64_t>(dtype_size(tensor.dtype)),
        what);
}

void DeviceJudge::check(const WeightMatrix& weight, const char* what) const {
  if (weight.empty()) return;
  check(weight.values, weight.rows * weight.row_bytes(), what);
  if (weight.scales != nullptr) check(weight.scales, weight.rows * weight.scale_row_bytes(), what);
  if (weight.row_scales != nullptr) check(weight.row_scales, weight.rows * 4, what);
}

void DeviceJudge::check(const ops::MlpWeights& weights, const char* what) const {
  for (const WeightMatrix* weight : {&weights.gate, &weights.up, &weights.down}) check(*weight, what);
}

void DeviceJudge::check(std::span<const float> values, const char* what) const {
  if (!values.empty()) check(values.data(), std::ssize(values) * 4, what);
}

void DeviceJudge::check(const ops::LayerPages& pages) const {
  for (const ops::PagePart& part : {pages.k, pages.v, pages.index_k}) {
    if (part.data != nullptr) check(part.data, part.page_bytes, "pages");
  }
}

void DeviceJudge::check(const ops::Batch& batch) const {
  const std::int64_t tokens = batch.tokens, sequences = batch.sequences;
  for (const std::int32_t* array : {batch.token_ids, batch.positions, batch.sequence_of_token}) {
    check(array, tokens * 4, "batch");
  }
  check(batch.query_begin, (sequences + 1) * 4, "batch");
  check(batch.context_lengths, sequences * 4, "batch");
  for (const std::int32_t* table : {batch.page_table, batch.index_page_table}) {
    check(table, sequences * batch.page_table_stride * 4, "batch");
  }
  if (batch.features != nullptr) {
    check(batch.feature_rows, tokens * 4, "batch");
    check(batch.features, 1, "batch");
  }
  if (batch.longest_query <= 0 || batch.longest_context <= 0) fail_internal("a batch without bounds");
  if ((batch.host == nullptr) != (recording_ != nullptr))
    fail_internal("a batch's host arrays in a recorded pass only");
}

void DeviceJudge::upload(std::byte* to, std::span<const std::byte> from) {
  if (recording_ != nullptr) fail_internal("an upload inside of a pass that is recorded");
  check(to, std::ssize(from), "upload");
  protect(true);
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  protect(false);
}

void DeviceJudge::upload(std::span<const ops::Transfer> transfers, const std::function<void(std::int64_t)>& progress) {
  std::int64_t done = 0;
  for (const ops::Transfer& transfer : transfers) {
    check(transfer.to, std::ssize(transfer.from), "upload");
    done += std::ssize(transfer.from);
  }
  protect(true);
  for (const ops::Transfer& transfer : transfers) {
    if (!transfer.from.empty()) std::memcpy(transfer.to, transfer.from.data(), transfer.from.size());
  }
  protect(false);
  if (progress) progress(done);
}

void DeviceJudge::download(std::span<std::byte> to, const std::byte* from) {
  if (recording_ != nullptr) fail_internal("a download inside of a pass that is recorded");
  check(from, std::ssize(to), "download");
  protect(true);
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  protect(false);
  counts_->downloaded_bytes += std::ssize(to);
}

void DeviceJudge::fill_random(std::span<std::byte> to, const RandomFill& fill) {
  check(to.data(), std::ssize(to), "fill_random");
  operate([=, this] { inner_->fill_random(to, fill); });
}

bool DeviceJudge::begin_pass(std::uint64_t key) {
  if (key == 0) return false;
  const auto [pass, added] = passes_.try_emplace(key);
  if (added) {
    ++counts_->recorded;
    recording_ = &pass->second;
    return false;
  }
  ++counts_->played;
  for (const Operation& operation : pass->second) operate(operation);
  return true;
}

void DeviceJudge::end_pass() { recording_ = nullptr; }

void DeviceJudge::drop_pass() {
  std::erase_if(passes_, [this](const auto& pass) { return &pass.second == recording_; });
  recording_ = nullptr;
}

bool DeviceJudge::begin_marks() {
  marks_ = 0;
  return counts_->marks;
}

// A second each.
std::vector<double> DeviceJudge::take_marks() { return std::vector<double>(static_cast<std::size_t>(marks_), 1.0); }

std::string DeviceJudge::refusal(const ops::Limits& limits) const {
  const auto over = [](std::int64_t value, std::int64_t most) { return most > 0 && value > most; };
  if (over(std::max(limits.hidden, limits.vision_hidden), counts_->most_hidden)) return "hidden_size is too large";
  if (over(limits.context, counts_->most_context)) return "--max-model-len is too large";
  return {};
}

std::int64_t DeviceJudge::workspace_bytes(const ops::Limits& limits) const { return inner_->workspace_bytes(limits); }

void DeviceJudge::bind_workspace(std::span<std::byte> workspace, const ops::Limits& limits) {
  check(workspace.data(), std::ssize(workspace), "workspace");
  inner_->bind_workspace(workspace, limits);
  sampled_ = allocate(limits.logits_rows * 4);
  passes_.clear();
}

void DeviceJudge::embed(const ops::Batch& batch, const WeightMatrix& table, const std::int32_t* previous,
                        const ops::Tensor& residual) {
  check(batch);
  check(table, "embed");
  check(residual, "embed");
  if (recording_ != nullptr && batch.features != nullptr) fail_internal("features in a pass that is recorded");
  if (previous != nullptr) check(previous, 4, "embed");
  operate([=, this] {
    ++counts_->passes;
    if (previous != nullptr) ++counts_->of_drawn;
    inner_->embed(batch, table, previous, residual);
  });
}

void DeviceJudge::rotary_table(const ops::Batch& batch, std::span<const float> inv_freq, float attention_factor,
                               const ops::Tensor& table) {
  check(batch);
  check(inv_freq, "rotary_table");
  check(table, "rotary_table");
  operate([=, this] { inner_->rotary_table(batch, inv_freq, attention_factor, table); });
}

void DeviceJudge::add_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::NormWeight& norm,
                           const ops::Tensor& normed, ops::Communicator* communicator) {
  for (const ops::Tensor* tensor : {&residual, &delta, &normed}) check(*tensor, "add_norm");
  check(norm.weight, "add_norm");
  operate([=, this] { inner_->add_norm(residual, delta, norm, normed, communicator); });
}

void DeviceJudge::linear(const ops::Tensor& x, std::span<const WeightMatrix> weights, const ops::Tensor& out) {
  for (const WeightMatrix& weight : weights) check(weight, "linear");
  for (const ops::Tensor* tensor : {&x, &out}) check(*tensor, "linear");
  operate([=, this] { inner_->linear(x, weights, out); });
}

void DeviceJudge::qkv_finish(const ops::Batch& batch, const ops::QkvFinish& args, const ops::Tensor& packed,
                             const ops::Tensor& table, const ops::LayerPages& pages, const ops::Tensor& q,
                             const ops::Tensor& index_q) {
  check(batch);
  check(pages);
  for (const ops::Tensor* tensor : {&packed, &table, &q, &index_q}) check(*tensor, "qkv_finish");
  for (const auto& norm : {args.q_norm, args.k_norm, args.index_q_norm, args.index_k_norm}) check(norm, "qkv_finish");
  operate([=, this] { inner_->qkv_finish(batch, args, packed, table, pages, q, index_q); });
}

void DeviceJudge::select_blocks(const ops::Batch& batch, const ops::SelectBlocks& args, const ops::Tensor& index_q,
                                const ops::LayerPages& pages, std::int32_t* block_ids) {
  check(batch);
  check(pages);
  check(index_q, "select_blocks");
  check(block_ids, std::int64_t{batch.tokens} * args.index_heads * args.topk * 4, "select_blocks");
  if (recording_ != nullptr && !args.dropped.empty()) fail_internal("dropped blocks in a pass that is recorded");
  operate([=, this] { inner_->select_blocks(batch, args, index_q, pages, block_ids); });
}

void DeviceJudge::attend_dense(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                               const ops::LayerPages& pages, const ops::Tensor& out) {
  check(batch);
  check(pages);
  for (const ops::Tensor* tensor : {&q, &out}) check(*tensor, "attend_dense");
  operate([=, this] { inner_->attend_dense(batch, args, q, pages, out); });
}

void DeviceJudge::attend_sparse(const ops::Batch& batch, const ops::Attention& args, const ops::Tensor& q,
                                const ops::LayerPages& pages, const std::int32_t* block_ids, const ops::Tensor& out) {
  check(batch);
  check(pages);
  for (const ops::Tensor* tensor : {&q, &out}) check(*tensor, "attend_sparse");
  check(block_ids, std::int64_t{batch.tokens} * args.kv_heads * args.topk * 4, "attend_sparse");
  operate([=, this] { inner_->attend_sparse(batch, args, q, pages, block_ids, out); });
}

void DeviceJudge::route(const ops::Tensor& hidden, const WeightMatrix& gate, std::span<const float> bias,
                        const ops::Routing& routing) {
  check(hidden, "route");
  check(gate, "route");
  check(bias, "route");
  check(routing.expert_ids, hidden.rows * routing.experts_per_token * 4, "route");
  check(routing.expert_weights, hidden.rows * routing.experts_per_token * 4, "route");
  operate([=, this] { inner_->route(hidden, gate, bias, routing); });
}

void DeviceJudge::experts(const ops::Tensor& hidden, const ops::Routing& routing, int first,
                          std::span<const ops::MlpWeights> experts, const ops::MlpWeights* shared,
                          float routed_scaling_factor, const ops::Activation& activation, const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&hidden, &out}) check(*tensor, "experts");
  for (const ops::MlpWeights& expert : experts) check(expert, "experts");
  if (shared != nullptr) check(*shared, "experts");
  check(routing.expert_ids, hidden.rows * routing.experts_per_token * 4, "experts");
  check(routing.expert_weights, hidden.rows * routing.experts_per_token * 4, "experts");
  operate(
      [=, this] { inner_->experts(hidden, routing, first, experts, shared, routed_scaling_factor, activation, out); });
}

void DeviceJudge::mlp(const ops::Tensor& hidden, const ops::MlpWeights& weights, const ops::Activation& activation,
                      const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&hidden, &out}) check(*tensor, "mlp");
  check(weights, "mlp");
  operate([=, this] { inner_->mlp(hidden, weights, activation, out); });
}

void DeviceJudge::logits(const ops::Tensor& hidden, std::span<const std::int32_t> row_ids, const WeightMatrix& head,
                         const ops::Tensor& logits) {
  for (const ops::Tensor* tensor : {&hidden, &logits}) check(*tensor, "logits");
  check(head, "logits");
  check(row_ids.data(), std::ssize(row_ids) * 4, "logits");
  operate([=, this] { inner_->logits(hidden, row_ids, head, logits); });
}

void DeviceJudge::begin_sample(const ops::Tensor& logits, std::span<const ops::SamplingRow> rows) {
  check(logits, "sample");
  protect(true);
  inner_->begin_sample(logits, rows);
  std::memcpy(sampled_.data(), inner_->sampled_ids(), rows.size() * 4);
  protect(false);
}

void DeviceJudge::end_sample(std::span<std::int32_t> ids, std::span<std::uint8_t> finite) {
  inner_->end_sample(ids, finite);
}

void DeviceJudge::copy_pages(const ops::PagePart& part, std::span<const std::int32_t> from,
                             std::span<const std::int32_t> to) {
  for (const auto& pages : {from, to}) {
    for (const std::int32_t page : pages) check(part.data + page * part.page_bytes, part.page_bytes, "copy_pages");
  }
  operate([=, this] { inner_->copy_pages(part, from, to); });
}

void DeviceJudge::operate_slowly(Operation operation) {
  operate(std::move(operation));
  busy_ = counts_->slow;
}

void DeviceJudge::patch_embed(const ops::Tensor& pixels, const WeightMatrix& weight, const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&pixels, &out}) check(*tensor, "patch_embed");
  check(weight, "patch_embed");
  ++counts_->pictures;
  operate_slowly([=, this] { inner_->patch_embed(pixels, weight, out); });
}

void DeviceJudge::vision_rotary_table(std::span<const std::int32_t> positions, std::span<const float> inv_freq,
                                      const ops::Tensor& table) {
  check(table, "vision_rotary_table");
  operate_slowly([=, this] { inner_->vision_rotary_table(positions, inv_freq, table); });
}

void DeviceJudge::layer_norm(const ops::Tensor& residual, const ops::Tensor& delta, const ops::LayerNormWeight& norm,
                             const ops::Tensor& normed) {
  for (const ops::Tensor* tensor : {&residual, &delta, &normed}) check(*tensor, "layer_norm");
  for (const std::span<const float>& values : {norm.weight, norm.bias}) check(values, "layer_norm");
  operate_slowly([=, this] { inner_->layer_norm(residual, delta, norm, normed); });
}

void DeviceJudge::linear_bias(const ops::Tensor& x, std::span<const WeightMatrix> weights, std::span<const float> bias,
                              const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&x, &out}) check(*tensor, "linear_bias");
  for (const WeightMatrix& weight : weights) check(weight, "linear_bias");
  check(bias, "linear_bias");
  operate_slowly([=, this] { inner_->linear_bias(x, weights, bias, out); });
}

void DeviceJudge::vision_qkv_finish(const ops::VisionHeads& args, const ops::Tensor& packed, const ops::Tensor& table) {
  for (const ops::Tensor* tensor : {&packed, &table}) check(*tensor, "vision_qkv_finish");
  operate_slowly([=, this] { inner_->vision_qkv_finish(args, packed, table); });
}

void DeviceJudge::attend_segments(const ops::VisionHeads& args, const ops::Tensor& packed,
                                  std::span<const std::int32_t> segment_begin, std::int64_t first_row,
                                  const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&packed, &out}) check(*tensor, "attend_segments");
  operate_slowly([=, this] { inner_->attend_segments(args, packed, segment_begin, first_row, out); });
}

void DeviceJudge::gelu_mlp(const ops::Tensor& hidden, const ops::GeluMlpWeights& weights, const ops::Tensor& out) {
  for (const ops::Tensor* tensor : {&hidden, &out}) check(*tensor, "gelu_mlp");
  for (const WeightMatrix* weight : {&weights.fc1, &weights.fc2}) check(*weight, "gelu_mlp");
  for (const std::span<const float>& bias : {weights.fc1_bias, weights.fc2_bias}) check(bias, "gelu_mlp");
  operate_slowly([=, this] { inner_->gelu_mlp(hidden, weights, out); });
}

std::function<std::unique_ptr<ops::Backend>(std::unique_ptr<ops::Backend>)> wall(DeviceJudge::Counts* counts,
                                                                                 std::int64_t memory_bytes) {
  return [=](std::unique_ptr<ops::Backend> inner) {
    return std::make_unique<DeviceJudge>(std::move(inner), memory_bytes, counts);
  };
}

}  // namespace m3::test
