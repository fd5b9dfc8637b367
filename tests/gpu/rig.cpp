#include "tests/gpu/rig.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

namespace m3::test::gpu {

namespace {
constexpr std::byte canary{0xa5};
constexpr std::byte poison{0xff};
}  // namespace

void Results::add(const std::string& operation, const std::string& format, double error, const std::string& tolerance,
                  const std::string& what) {
  Row& row = rows_[{operation, format}];
  ++row.cases;
  row.tolerance = tolerance;
  const bool passed = error <= 1;  // false for NaN
  if (!passed) {
    ++row.failed;
    char line[64];
    std::snprintf(line, sizeof line, "%.3g of the tolerance, ", error);
    failures_.push_back(operation + " " + format + ": " + line + what);
  }
  if (!(error <= row.worst)) row.worst = error;
}

bool Results::print() const {
  int cases = 0, failed = 0;
  std::printf("%-14s %-16s %6s %7s %10s  %s\n", "operation", "format", "cases", "failed", "worst/tol", "tolerance");
  for (const auto& [key, row] : rows_) {
    std::printf("%-14s %-16s %6d %7d %10.3g  %s\n", key.first.c_str(), key.second.c_str(), row.cases, row.failed,
                row.worst, row.tolerance.c_str());
    cases += row.cases;
    failed += row.failed;
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(failures_.size(), 25); ++i) {
    std::printf("FAILED %s\n", failures_[i].c_str());
  }
  std::printf("%d passed, %d failed\n", cases - failed, failed);
  return failed == 0 && cases > 0;
}

Guarded::Guarded(ops::Backend& backend, std::size_t bytes)
    : backend_(backend), memory_(backend.allocate(static_cast<std::int64_t>(bytes + 2 * guard))), size_(bytes) {
  const std::vector<std::byte> mark(guard, canary);
  backend.upload(memory_.data(), mark);
  backend.upload(memory_.data() + guard + bytes, mark);
}

bool Guarded::intact() const {
  std::vector<std::byte> seen(guard);
  for (const std::byte* at : {memory_.data(), memory_.data() + guard + size_}) {
    backend_.download(seen, at);
    if (!std::all_of(seen.begin(), seen.end(), [](std::byte b) { return b == canary; })) return false;
  }
  return true;
}

Rig::Rig(bool deterministic) : deterministic_(deterministic) {
  ops::BackendOptions options;
  options.name = "cuda";
  options.deterministic = deterministic;
  pool_ = std::make_unique<ThreadPool>(1);
  backend_ = ops::make_backend(options, *pool_);
}

void Rig::bind(const ops::Limits& limits) {
  const auto bytes = static_cast<std::size_t>(backend_->workspace_bytes(limits));
  workspace_.reset();
  workspace_ = std::make_unique<Guarded>(*backend_, bytes);
  const std::vector<std::byte> fill(std::min<std::size_t>(bytes, std::size_t{4} << 20), poison);
  for (std::size_t at = 0; at < std::min<std::size_t>(bytes, std::size_t{64} << 20); at += fill.size()) {
    backend_->upload(workspace_->data() + at, std::span(fill).first(std::min(fill.size(), bytes - at)));
  }
  backend_->bind_workspace({workspace_->data(), bytes}, limits);
}

std::byte* Rig::place(std::span<const std::byte> bytes) {
  std::byte* to = reserve_raw(bytes.size());
  backend_->upload(to, bytes);
  return to;
}

std::byte* Rig::reserve_raw(std::size_t bytes) { return memory_.emplace_back(*backend_, bytes).data(); }

std::byte* Rig::reserve(std::size_t bytes) {
  std::byte* to = reserve_raw(bytes);
  backend_->upload(to, std::vector<std::byte>(bytes, poison));
  return to;
}

WeightMatrix Rig::place(const WeightMatrix& weight) {
  WeightMatrix placed = weight;
  placed.values = place({weight.values, static_cast<std::size_t>(weight.rows * weight.row_bytes())});
  if (weight.scales != nullptr) {
    placed.scales = place({weight.scales, static_cast<std::size_t>(weight.rows * weight.scale_row_bytes())});
  }
  if (weight.row_scales != nullptr) {
    placed.row_scales = reinterpret_cast<const float*>(
        place(std::as_bytes(std::span(weight.row_scales, static_cast<std::size_t>(weight.rows)))));
  }
  return placed;
}

ops::Batch Rig::place(const RaggedBatch& batch) {
  ops::Batch placed = batch.view();
  placed.token_ids = place(batch.token_ids);
  placed.positions = place(batch.positions);
  placed.sequence_of_token = place(batch.sequence_of_token);
  placed.query_begin = place(batch.query_begin);
  placed.context_lengths = place(batch.context_lengths);
  placed.page_table = place(batch.page_table);
  placed.index_page_table = batch.index_page_table.empty() ? placed.page_table : place(batch.index_page_table);
  for (std::size_t s = 0; s < batch.context_lengths.size(); ++s) {
    placed.longest_query = std::max(placed.longest_query, batch.query_begin[s + 1] - batch.query_begin[s]);
    placed.longest_context = std::max(placed.longest_context, batch.context_lengths[s]);
  }
  return placed;
}

void Rig::clear(Results& results, const std::string& operation) {
  backend_->synchronize();
  bool intact = workspace_ == nullptr || workspace_->intact();
  for (const Guarded& memory : memory_) intact = intact && memory.intact();
  results.add_exact(operation, "canaries", intact, "a canary beside a buffer was overwritten");
  memory_.clear();
}

DeviceMatrix::DeviceMatrix(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns,
                           const std::vector<float>& values, int padding)
    : rig_(rig), tensor_{dtype, rows, columns, columns + padding, nullptr} {
  upload(&values);
}

DeviceMatrix::DeviceMatrix(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns, int padding)
    : rig_(rig), tensor_{dtype, rows, columns, columns + padding, nullptr} {
  upload(nullptr);
}

void DeviceMatrix::upload(const std::vector<float>* values) {
  const std::size_t size = dtype_size(tensor_.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor_.rows * tensor_.row_stride) * size, poison);
  if (values != nullptr) {
    for (std::int64_t r = 0; r < tensor_.rows; ++r) {
      for (std::int64_t c = 0; c < tensor_.columns; ++c) {
        const float value = (*values)[static_cast<std::size_t>(r * tensor_.columns + c)];
        std::byte* to = bytes.data() + static_cast<std::size_t>(r * tensor_.row_stride + c) * size;
        if (tensor_.dtype == DType::f32) {
          std::memcpy(to, &value, 4);
        } else {
          const bf16 half = to_bf16(value);
          std::memcpy(to, &half, 2);
        }
      }
    }
  }
  tensor_.data = rig_.place(bytes);
}

std::vector<float> DeviceMatrix::values() {
  const std::size_t size = dtype_size(tensor_.dtype);
  const auto bytes = rig_.download(tensor_.data, static_cast<std::size_t>(tensor_.rows * tensor_.row_stride) * size);
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(tensor_.rows * tensor_.columns));
  for (std::int64_t r = 0; r < tensor_.rows; ++r) {
    for (std::int64_t c = 0; c < tensor_.columns; ++c) {
      const std::byte* from = bytes.data() + static_cast<std::size_t>(r * tensor_.row_stride + c) * size;
      float value = 0;
      if (tensor_.dtype == DType::f32) {
        std::memcpy(&value, from, 4);
      } else {
        bf16 half;
        std::memcpy(&half, from, 2);
        value = to_float(half);
      }
      result.push_back(value);
    }
  }
  return result;
}

bool DeviceMatrix::padding_intact() {
  const std::size_t size = dtype_size(tensor_.dtype);
  const auto bytes = rig_.download(tensor_.data, static_cast<std::size_t>(tensor_.rows * tensor_.row_stride) * size);
  for (std::int64_t r = 0; r < tensor_.rows; ++r) {
    const auto begin = static_cast<std::size_t>(r * tensor_.row_stride + tensor_.columns) * size;
    const auto end = static_cast<std::size_t>((r + 1) * tensor_.row_stride) * size;
    for (std::size_t i = begin; i < end; ++i) {
      if (bytes[i] != poison) return false;
    }
  }
  return true;
}

namespace {

template <typename Tolerance>
double worst_share(const std::vector<float>& actual, const std::vector<float>& expected, const Tolerance& tolerance) {
  if (actual.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    if (actual[i] == expected[i]) continue;
    const double share = std::abs(double{actual[i]} - expected[i]) / tolerance(expected[i]);
    if (!(share <= worst)) worst = std::isnan(share) ? INFINITY : share;
  }
  return worst;
}

}  // namespace

double bf16_error(const std::vector<float>& actual, const std::vector<float>& expected, double absolute) {
  return worst_share(actual, expected, [&](float value) { return std::abs(double{value}) * 0x1p-7 + absolute; });
}

double absolute_error(const std::vector<float>& actual, const std::vector<float>& expected, double tolerance) {
  return worst_share(actual, expected, [&](float) { return tolerance; });
}

double norm_error(const std::vector<float>& actual, const std::vector<float>& expected, double bound) {
  if (actual.size() != expected.size()) return INFINITY;
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;  // neither has written it
    difference += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  if (std::isnan(difference)) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / size) / bound;
}

ThreadPool& workers() {
  static ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  return pool;
}

ops::Backend& judge(const ops::Limits& limits) {
  static const std::unique_ptr<ops::Backend> backend = ops::make_backend(scalar_options(), workers());
  static ops::Memory memory;
  memory = backend->allocate(backend->workspace_bytes(limits));
  backend->bind_workspace(memory.bytes(), limits);
  return *backend;
}

}  // namespace m3::test::gpu
