#include "tests/support/ops_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "m3/error.h"
#include "src/base/error.h"
#include "src/ops/host/pages.h"

namespace m3::test {

std::vector<float> fp32_values(Random& random, std::int64_t count, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<float> normal_values(Random& random, std::int64_t count, float scale) {
  std::vector<float> values = fp32_values(random, count, scale);
  for (float& value : values) value = round_to_bf16(value);
  return values;
}

std::vector<float> integer_values(Random& random, std::int64_t count, int bound) {
  std::uniform_int_distribution<int> uniform(-bound, bound);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(uniform(random));
  return values;
}

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t columns)
    : dtype_(dtype), rows_(rows), columns_(columns), stride_(columns + 5) {
  bytes_.resize(static_cast<std::size_t>(rows * stride_) * dtype_size(dtype));
}

Matrix::Matrix(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<float>& values)
    : Matrix(dtype, rows, columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) set(r, c, values[static_cast<std::size_t>(r * columns + c)]);
  }
}

void Matrix::set(std::int64_t row, std::int64_t column, float value) {
  const auto at = static_cast<std::size_t>(row * stride_ + column);
  if (dtype_ == DType::f32) {
    std::memcpy(bytes_.data() + at * 4, &value, 4);
  } else {
    const bf16 half = to_bf16(value);
    std::memcpy(bytes_.data() + at * 2, &half, 2);
  }
}

void Matrix::fill(float value) {
  for (std::int64_t r = 0; r < rows_; ++r) {
    for (std::int64_t c = 0; c < columns_; ++c) set(r, c, value);
  }
}

ops::Tensor Matrix::view() { return {dtype_, rows_, columns_, stride_, bytes_.data()}; }

std::vector<float> Matrix::row(std::int64_t index) const {
  std::vector<float> result(static_cast<std::size_t>(columns_));
  for (std::int64_t c = 0; c < columns_; ++c) {
    const auto at = static_cast<std::size_t>(index * stride_ + c);
    float value = 0;
    if (dtype_ == DType::f32) {
      std::memcpy(&value, bytes_.data() + at * 4, 4);
    } else {
      bf16 half;
      std::memcpy(&half, bytes_.data() + at * 2, 2);
      value = to_float(half);
    }
    result[static_cast<std::size_t>(c)] = value;
  }
  return result;
}

std::vector<float> Matrix::values() const {
  std::vector<float> result;
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::vector<float> values = row(r);
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

namespace {

template <typename T>
void put(std::vector<std::byte>& bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

std::uint8_t any_byte(Random& random) { return static_cast<std::uint8_t>(random() >> 16 & 255u); }

}  // namespace

Weight::Weight(Random& random, WeightFormat format, std::int64_t rows, std::int64_t columns, bool exact) {
  view.format = format;
  view.rows = rows;
  view.columns = columns;
  const auto count = static_cast<std::size_t>(rows * columns);
  values.resize(static_cast<std::size_t>(rows * view.row_bytes()));
  scales.resize(static_cast<std::size_t>(rows * view.scale_row_bytes()));
  const std::vector<float> numbers =
      exact ? integer_values(random, rows * columns, 4) : fp32_values(random, rows * columns, 0.05f);
  switch (format) {
    case WeightFormat::f32:
      for (std::size_t i = 0; i < count; ++i) put(values, i, numbers[i]);
      break;
    case WeightFormat::f16:
      for (std::size_t i = 0; i < count; ++i) put(values, i, float_to_f16(numbers[i]));
      break;
    case WeightFormat::bf16:
      for (std::size_t i = 0; i < count; ++i) put(values, i, to_bf16(numbers[i]));
      break;
    case WeightFormat::fp8:
    case WeightFormat::mxfp8:
      // All finite codes, subnormals too, unless sums must be exact.
      for (std::size_t i = 0; i < count; ++i) {
        std::uint8_t code = any_byte(random);
        if ((code & 0x7f) == 0x7f) code = 0;
        put(values, i, exact ? float_to_e4m3(numbers[i]) : code);
      }
      break;
    case WeightFormat::mxfp4:
    case WeightFormat::nvfp4:
      for (std::byte& pair : values) pair = static_cast<std::byte>(any_byte(random));
      break;
  }
  for (std::byte& scale : scales) {
    if (format == WeightFormat::nvfp4) {
      scale = static_cast<std::byte>(exact ? float_to_e4m3(static_cast<float>(1 + random() % 4))
                                           : float_to_e4m3(0.25f + static_cast<float>(random() % 64) / 8.0f));
    } else {
      scale = static_cast<std::byte>(127 + static_cast<int>(random() % 3) - (exact ? 1 : 6));
    }
  }
  if (format == WeightFormat::nvfp4) view.tensor_scale = exact ? 0.5f : 0.0123f;
  if (format == WeightFormat::fp8) {
    for (std::int64_t r = 0; r < rows; ++r) {
      row_scales.push_back(exact ? 0.25f : 0.001f * static_cast<float>(1 + random() % 9));
    }
    view.row_scales = row_scales.data();
  }
  view.values = values.data();
  if (!scales.empty()) view.scales = scales.data();
}

RaggedBatch::RaggedBatch(const std::vector<SequenceShape>& shapes, std::int32_t pages, unsigned seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  if (seed != 0) std::shuffle(order.begin(), order.end(), Random(seed));
  for (const SequenceShape& shape : shapes) {
    stride = std::max(stride, static_cast<std::int32_t>((shape.context + 127) / 128));
  }
  query_begin.push_back(0);
  std::size_t dealt = 0;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    const SequenceShape& shape = shapes[s];
    context_lengths.push_back(static_cast<std::int32_t>(shape.context));
    for (std::int64_t i = 0; i < shape.queries; ++i) {
      positions.push_back(static_cast<std::int32_t>(shape.context == 0 ? 0 : shape.context - shape.queries + i));
      sequence_of_token.push_back(static_cast<std::int32_t>(s));
      token_ids.push_back(static_cast<std::int32_t>(i));
    }
    query_begin.push_back(tokens());
    for (std::int32_t block = 0; block < stride; ++block) {
      const bool used = block * 128 < shape.context;
      if (used && dealt == order.size()) fail_internal("the test's pool is too small");
      page_table.push_back(used ? order[dealt++] : -1);
    }
  }
}

ops::Batch RaggedBatch::view() const {
  ops::Batch batch;
  batch.tokens = tokens();
  batch.sequences = static_cast<std::int32_t>(context_lengths.size());
  batch.token_ids = token_ids.data();
  batch.positions = positions.data();
  batch.sequence_of_token = sequence_of_token.data();
  batch.query_begin = query_begin.data();
  batch.context_lengths = context_lengths.data();
  batch.page_table = page_table.data();
  batch.page_table_stride = stride;
  batch.index_page_table = index_page_table.empty() ? page_table.data() : index_page_table.data();
  return batch;
}

PageMemory::PageMemory(DType dtype, std::int32_t pages, int heads) : dtype_(dtype), heads_(heads) {
  // 0xff everywhere: NaN in all three types.
  bytes_.assign(static_cast<std::size_t>(pages) * static_cast<std::size_t>(heads) * 128 * 128 * dtype_size(dtype),
                std::byte{0xff});
}

ops::PagePart PageMemory::part() {
  return {dtype_, bytes_.data(), std::int64_t{heads_} * 128 * 128 * static_cast<std::int64_t>(dtype_size(dtype_))};
}

void PageMemory::write(std::int32_t page, int head, std::int64_t slot, const std::vector<float>& row, float scale) {
  ops::write_cache_row(part(), page, head, slot, scale, row.data());
}

std::vector<float> PageMemory::read(std::int32_t page, int head, std::int64_t slot, float scale) {
  std::vector<float> row(128);
  ops::read_cache_rows(part(), page, head, slot, 1, scale, row.data());
  return row;
}

void PageMemory::fill_contexts(const RaggedBatch& batch, Random& random, bool integers, float scale) {
  for (std::size_t s = 0; s < batch.context_lengths.size(); ++s) {
    for (std::int32_t position = 0; position < batch.context_lengths[s]; ++position) {
      const std::int32_t page =
          batch.page_table[s * static_cast<std::size_t>(batch.stride) + static_cast<std::size_t>(position / 128)];
      for (int head = 0; head < heads_; ++head) {
        write(page, head, position % 128, integers ? integer_values(random, 128, 2) : normal_values(random, 128),
              scale);
      }
    }
  }
}

TestBackend::TestBackend(const ops::BackendOptions& options, int threads, const ops::Limits& limits)
    : pool(threads), backend(ops::make_backend(options, pool)) {
  const auto bytes = static_cast<std::size_t>(backend->workspace_bytes(limits));
  memory.resize(bytes + 64);
  void* start = memory.data();
  std::size_t space = memory.size();
  std::align(64, bytes, start, space);
  backend->bind_workspace({static_cast<std::byte*>(start), bytes}, limits);
}

ops::BackendOptions scalar_options(ops::Numerics numerics) { return {"scalar", numerics, ""}; }

std::vector<ops::BackendOptions> cpu_options() {
  std::vector<ops::BackendOptions> result;
  ThreadPool pool(1);
  for (const char* isa : {"avx2", "avx512"}) {
    const ops::BackendOptions options{"cpu", ops::Numerics::bf16, isa};
    try {
      ops::make_backend(options, pool);
      result.push_back(options);
    } catch (const Error&) {
      // This machine lacks it.
    }
  }
  return result;
}

std::vector<ops::BackendOptions> all_options() {
  std::vector<ops::BackendOptions> result = cpu_options();
  result.insert(result.begin(), scalar_options());
  return result;
}

std::string name_of(const ops::BackendOptions& options) {
  return options.isa.empty() ? options.name : options.name + " " + options.isa;
}

}  // namespace m3::test
