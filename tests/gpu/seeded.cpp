#include "tests/gpu/seeded.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

namespace m3::test::gpu {

namespace {

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

RandomFill of_bytes(std::uint64_t key, std::uint64_t mask, std::uint64_t set, int element_bytes) {
  const std::uint64_t repeated = element_bytes == 2 ? 0x0001000100010001u : 0x0101010101010101u;
  return {.kind = RandomFill::Kind::bytes, .key = key, .mask = mask * repeated, .set = set * repeated};
}

// Between rows, and never written.
constexpr std::int64_t padding = 8;

}  // namespace

RandomFill random_fill(DType dtype, std::uint64_t key) {
  const RandomFill::Kind kind = dtype == DType::f32    ? RandomFill::Kind::f32
                                : dtype == DType::bf16 ? RandomFill::Kind::bf16
                                                       : RandomFill::Kind::f8_e4m3;
  return {.kind = kind, .key = key, .parameter = std::sqrt(3.0)};
}

// Sign, the exponent's last bit, and of the mantissa two bits of bf16 and three of e4m3.
RandomFill exact_fill(DType dtype, std::uint64_t key, bool ties) {
  if (dtype == DType::bf16) return of_bytes(key, ties ? 0x8080 : 0x80e0, 0x3f00, 2);
  return of_bytes(key, ties ? 0x88 : 0x8f, 0x30, 1);
}

RandomFill equal_fill(DType dtype) {
  return dtype == DType::bf16 ? of_bytes(0, 0, 0x3f80, 2) : of_bytes(0, 0, 0x38, 1);
}

Twin::Twin(Rig& rig, std::int64_t bytes, const RandomFill& fill)
    : fill_(fill),
      bytes_(bytes),
      device_(std::make_unique<Guarded>(rig.backend(), static_cast<std::size_t>(bytes))),
      host_(new std::byte[static_cast<std::size_t>(bytes)]) {  // not touched: it takes no memory before make()
  rig->fill_random({device_->data(), static_cast<std::size_t>(bytes)}, fill);
}

void Twin::make(std::int64_t begin, std::int64_t bytes) {
  fill_random(fill_, begin / fill_.element_bytes(), {host_.get() + begin, static_cast<std::size_t>(bytes)});
}

void Twin::make_all() {
  constexpr std::int64_t piece = 1 << 20;
  workers().each((bytes_ + piece - 1) / piece,
                 [&](std::int64_t i, int) { make(i * piece, std::min(piece, bytes_ - i * piece)); });
}

SeededPages::SeededPages(Rig& rig, DType dtype, std::int32_t pages, int heads, const RandomFill& fill)
    : dtype_(dtype),
      pages_(pages),
      page_bytes_(std::int64_t{heads} * ops::page_tokens * ops::head_dim * size_of(dtype)),
      memory_(rig, pages * page_bytes_, fill) {}

void SeededPages::need(const RaggedBatch& batch) {
  std::vector<std::int32_t> pages;
  for (std::size_t t = 0; t < batch.positions.size(); ++t) {
    const auto sequence = static_cast<std::size_t>(batch.sequence_of_token[t]);
    const auto* row = batch.page_table.data() + sequence * static_cast<std::size_t>(batch.stride);
    if (batch.context_lengths[sequence] > 0) pages.insert(pages.end(), row, row + batch.positions[t] / 128 + 1);
  }
  need(std::move(pages));
}

void SeededPages::need(std::vector<std::int32_t> pages) {
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  workers().each(std::ssize(pages), [&](std::int64_t i, int) {
    const std::int32_t page = pages[static_cast<std::size_t>(i)];
    if (page >= 0) memory_.make(page * page_bytes_, page_bytes_);
  });
}

SeededRows::SeededRows(Rig& rig, std::int64_t rows, std::int64_t columns, std::uint64_t key)
    : tensor_{DType::bf16, rows, columns, columns + padding, nullptr}, fill_(random_fill(DType::bf16, key)) {
  const auto bytes = static_cast<std::size_t>(rows * tensor_.row_stride * 2);
  tensor_.data = rig.reserve_raw(bytes);
  rig->fill_random({tensor_.data, bytes}, fill_);
}

std::vector<float> SeededRows::rows(std::span<const std::int32_t> which) const {
  std::vector<float> values;
  std::vector<bf16> row(static_cast<std::size_t>(tensor_.columns));
  for (const std::int32_t index : which) {
    seeded_values(fill_.key, fill_.parameter, index * tensor_.row_stride, tensor_.columns, row.data());
    for (const bf16 value : row) values.push_back(to_float(value));
  }
  return values;
}

ResultRows::ResultRows(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns)
    : rig_(rig), tensor_{dtype, rows, columns, columns + padding, nullptr} {
  const auto bytes = static_cast<std::size_t>(rows * tensor_.row_stride * size_of(dtype));
  tensor_.data = rig.reserve_raw(bytes);
  rig->fill_random({tensor_.data, bytes}, of_bytes(0, 0, 0xff, 1));
}

ResultRows::Values ResultRows::download() {
  Values values{tensor_.rows, tensor_.columns, tensor_.row_stride, {}, tensor_.dtype};
  values.bytes =
      rig_.download(tensor_.data, static_cast<std::size_t>(values.rows * values.stride * size_of(tensor_.dtype)));
  return values;
}

float ResultRows::Values::at(std::int64_t row, std::int64_t column) const {
  const std::byte* from = bytes.data() + (row * stride + column) * size_of(dtype);
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  bf16 half;
  std::memcpy(&half, from, 2);
  return to_float(half);
}

std::vector<float> ResultRows::Values::some(std::span<const std::int32_t> which) const {
  std::vector<float> values;
  for (const std::int32_t row : which) {
    for (std::int64_t column = 0; column < columns; ++column) values.push_back(at(row, column));
  }
  return values;
}

bool ResultRows::Values::all_numbers() const {
  std::atomic<bool> right = true;
  workers().split(rows, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        if (std::isnan(at(row, column))) right = false;
      }
      const std::byte* pad = bytes.data() + (row * stride + columns) * size_of(dtype);
      if (!std::all_of(pad, pad + padding * size_of(dtype), [](std::byte b) { return b == std::byte{0xff}; }))
        right = false;
    }
  });
  return right;
}

namespace {

template <typename RowError>
double worst_of_rows(const ResultRows::Values& a, const ResultRows::Values& b, const RowError& row_error) {
  if (a.rows != b.rows || a.columns != b.columns) return INFINITY;
  std::vector<double> worst(static_cast<std::size_t>(workers().size()));
  workers().split(a.rows, 16, [&](std::int64_t begin, std::int64_t end, int thread) {
    double& mine = worst[static_cast<std::size_t>(thread)];
    for (std::int64_t row = begin; row < end; ++row) {
      const double error = row_error(row);
      if (!(error <= mine)) mine = std::isnan(error) ? INFINITY : error;
    }
  });
  return *std::max_element(worst.begin(), worst.end());
}

}  // namespace

double worst_row(const ResultRows::Values& a, const ResultRows::Values& b, double bound) {
  return worst_of_rows(a, b, [&](std::int64_t row) {
    double difference = 0, size = 0;
    for (std::int64_t column = 0; column < a.columns; ++column) {
      const double x = a.at(row, column), y = b.at(row, column);
      difference += (x - y) * (x - y);
      size += y * y;
    }
    return difference == 0 ? 0 : std::sqrt(difference / size) / bound;
  });
}

double worst_element(const ResultRows::Values& a, const ResultRows::Values& b, double absolute) {
  return worst_of_rows(a, b, [&](std::int64_t row) {
    double worst = 0;
    for (std::int64_t column = 0; column < a.columns; ++column) {
      const double x = a.at(row, column), y = b.at(row, column);
      const double share = std::abs(x - y) / (std::abs(y) * 0x1p-7 + absolute);
      if (!(share <= worst)) worst = std::isnan(share) ? INFINITY : share;
    }
    return worst;
  });
}

SeededWeight::SeededWeight(Rig& rig, WeightFormat format, std::int64_t rows, std::int64_t columns, std::uint64_t key) {
  device_.format = format;
  device_.rows = rows;
  device_.columns = columns;
  const double target = 1 / std::sqrt(static_cast<double>(columns));
  const auto add = [&](std::int64_t bytes, RandomFill fill) {
    fill.key = key * 3 + parts_.size();
    parts_.emplace_back(rig, bytes, fill);
    return parts_.back().device();
  };
  // Codes of root mean square `size`; scales of two neighbouring powers of two.
  const auto scales = [&](double size) -> RandomFill {
    return {.kind = RandomFill::Kind::e8m0,
            .parameter = 0.5,
            .base = static_cast<std::uint8_t>(127 + std::lround(std::floor(std::log2(target / size))))};
  };
  constexpr double e2m1_size = 2.93, e4m3_size = 0.75;
  RandomFill values = of_bytes(0, 0xff, 0, 1);
  switch (format) {
    case WeightFormat::f32:
    case WeightFormat::bf16:
      values = random_fill(format == WeightFormat::f32 ? DType::f32 : DType::bf16, 0);
      values.parameter *= target;
      break;
    case WeightFormat::f16:
      values = of_bytes(0, 0x87ff, 0x2000, 2);  // ±2^-7 … 2^-5
      break;
    case WeightFormat::fp8:
    case WeightFormat::mxfp8:
      values = of_bytes(0, 0x9f, 0x20, 1);  // ±2^-3 … 1.875
      break;
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4: break;  // any code
  }
  device_.values = add(rows * device_.row_bytes(), values);
  if (format == WeightFormat::mxfp8) device_.scales = add(rows * device_.scale_row_bytes(), scales(e4m3_size));
  if (format == WeightFormat::mxfp4) device_.scales = add(rows * device_.scale_row_bytes(), scales(e2m1_size));
  if (format == WeightFormat::nvfp4) {
    device_.scales = add(rows * device_.scale_row_bytes(), of_bytes(0, 0x0f, 0x30, 1));  // 0.5 … 1.875
    device_.tensor_scale = static_cast<float>(target / e2m1_size / 1.2);
  }
  if (format == WeightFormat::fp8) {
    device_.row_scales = reinterpret_cast<const float*>(
        add(rows * 4, {.kind = RandomFill::Kind::row_scales, .parameter = target / e4m3_size}));
  }
  host_ = device_;
  host_.values = parts_[0].host();
  if (device_.scales != nullptr) host_.scales = parts_[1].host();
  if (device_.row_scales != nullptr) host_.row_scales = reinterpret_cast<const float*>(parts_[1].host());
}

void SeededWeight::need() {
  for (Twin& part : parts_) {
    if (!made_) part.make_all();
  }
  made_ = true;
}

RaggedBatch shared_batch(const std::vector<SequenceShape>& shapes, std::int32_t pages, unsigned seed) {
  std::int64_t blocks = 0;
  for (const SequenceShape& shape : shapes) blocks += (shape.context + 127) / 128;
  RaggedBatch batch(shapes, static_cast<std::int32_t>(std::max<std::int64_t>(blocks, pages)), 0);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), Random(seed));
  for (std::int32_t& page : batch.page_table) {
    if (page >= 0) page = order[static_cast<std::size_t>(page % pages)];
  }
  return batch;
}

RaggedBatch rows_of(const RaggedBatch& batch, std::span<const std::int32_t> rows) {
  RaggedBatch part = batch;
  part.positions.clear(), part.sequence_of_token.clear(), part.token_ids.clear();
  for (const std::int32_t row : rows) {
    const auto at = static_cast<std::size_t>(row);
    part.positions.push_back(batch.positions[at]);
    part.sequence_of_token.push_back(batch.sequence_of_token[at]);
    part.token_ids.push_back(batch.token_ids[at]);
  }
  return part;
}

std::vector<std::int32_t> sample_rows(std::int64_t rows, std::int64_t count, unsigned seed) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  if (rows <= count) return all;
  std::set<std::int32_t> some = {0, all.back()};
  Random random(seed);
  while (std::ssize(some) < count) some.insert(static_cast<std::int32_t>(random() % static_cast<unsigned>(rows)));
  return {some.begin(), some.end()};
}

}  // namespace m3::test::gpu
