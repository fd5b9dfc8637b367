#include "src/model/weight_placement.h"

#include "src/base/error.h"

namespace m3::model {

namespace {

constexpr std::int64_t piece_alignment = 256;  // of every piece: what bulk copies of a device want, with room

const std::byte* bytes_of(const float* values) { return reinterpret_cast<const std::byte*>(values); }

std::int64_t value_bytes(const WeightMatrix& weight) { return weight.rows * weight.row_bytes(); }
std::int64_t scale_bytes(const WeightMatrix& weight) { return weight.rows * weight.scale_row_bytes(); }
std::int64_t row_scale_bytes(const WeightMatrix& weight) { return weight.rows * 4; }

}  // namespace

std::int64_t WeightPlacement::offset_of(const std::byte* data, std::int64_t bytes) {
  const auto [entry, added] = offsets_.emplace(data, bytes_);
  if (added) {
    pieces_.push_back({{data, static_cast<std::size_t>(bytes)}, bytes_});
    bytes_ += (bytes + piece_alignment - 1) / piece_alignment * piece_alignment;
  }
  return entry->second;
}

void WeightPlacement::add(WeightMatrix& weight) {
  if (backend_->has_host_memory() || weight.empty()) return;
  matrices_.push_back(&weight);
  offset_of(weight.values, value_bytes(weight));
  if (weight.scales != nullptr) offset_of(weight.scales, scale_bytes(weight));
  if (weight.row_scales != nullptr) offset_of(bytes_of(weight.row_scales), row_scale_bytes(weight));
}

void WeightPlacement::add(std::span<const float>& values) {
  if (backend_->has_host_memory() || values.empty()) return;
  vectors_.push_back(&values);
  offset_of(bytes_of(values.data()), std::ssize(values) * 4);
}

void WeightPlacement::add(ops::MlpWeights& weights) {
  for (WeightMatrix* weight : {&weights.gate, &weights.up, &weights.down}) add(*weight);
}

void WeightPlacement::upload(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress) {
  std::unordered_map<const std::byte*, const RandomPiece*> recipes;
  for (const RandomPiece& piece : made) recipes.emplace(piece.data, &piece);
  std::vector<ops::Transfer> transfers;
  for (const Piece& piece : pieces_) {
    std::byte* to = memory_.data() + piece.offset;
    const auto recipe = recipes.find(piece.from.data());
    if (recipe == recipes.end()) {
      transfers.push_back({to, piece.from});
    } else {
      if (std::ssize(piece.from) != recipe->second->bytes)
        fail_internal("a weight of {} bytes is made of {}", piece.from.size(), recipe->second->bytes);
      backend_->fill_random({to, piece.from.size()}, recipe->second->fill);
    }
  }
  backend_->upload(transfers, progress);
  backend_->synchronize();
}

void WeightPlacement::place(std::span<const RandomPiece> made, const std::function<void(std::int64_t)>& progress) {
  if (bytes_ == 0) return;
  memory_ = backend_->allocate(bytes_);
  upload(made, progress);
  const auto placed = [&](const std::byte* data) { return memory_.data() + offsets_.at(data); };
  for (WeightMatrix* weight : matrices_) {
    weight->values = placed(weight->values);
    if (weight->scales != nullptr) weight->scales = placed(weight->scales);
    if (weight->row_scales != nullptr)
      weight->row_scales = reinterpret_cast<const float*>(placed(bytes_of(weight->row_scales)));
  }
  for (std::span<const float>* values : vectors_) {
    *values = {reinterpret_cast<const float*>(placed(bytes_of(values->data()))), values->size()};
  }
  matrices_.clear();
  vectors_.clear();
  pieces_.clear();
  offsets_.clear();
}

}  // namespace m3::model
