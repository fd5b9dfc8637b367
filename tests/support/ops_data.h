// Data for the operation tests: random tensors, weights in every stored format, pages and ragged batches, and a backend
// with its workspace. Everything is a function of a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/ops/backends.h"
#include "src/ops/ops.h"

namespace m3::test {

using Random = std::mt19937;

std::vector<float> fp32_values(Random& random, std::int64_t count, float scale = 1);
// Likewise, rounded to bf16: what activations and caches hold.
std::vector<float> normal_values(Random& random, std::int64_t count, float scale = 1);
// Integers in [-bound, bound]: products and sums of them are exact in fp32, whatever the order.
std::vector<float> integer_values(Random& random, std::int64_t count, int bound);

// A matrix of activations that owns its memory, with a stride a little wider than the row.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns);
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<float>& values);

  ops::Tensor view();
  std::vector<float> values() const;  // [rows · columns]
  std::vector<float> row(std::int64_t index) const;
  void fill(float value);

 private:
  void set(std::int64_t row, std::int64_t column, float value);
  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  std::vector<std::byte> bytes_;
};

// A weight in a stored format that owns its memory. Values are random codes; `exact` keeps codes and scales such that
// sums of products with small integers are exact in fp32.
struct Weight {
  Weight(Random& random, WeightFormat format, std::int64_t rows, std::int64_t columns, bool exact);
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;
  Weight(Weight&&) = default;

  std::vector<std::byte> values, scales;
  std::vector<float> row_scales;
  WeightMatrix view;
};

inline constexpr WeightFormat all_formats[] = {WeightFormat::f32,  WeightFormat::f16,   WeightFormat::bf16,
                                               WeightFormat::fp8,  WeightFormat::mxfp8, WeightFormat::mxfp4,
                                               WeightFormat::nvfp4};

// `queries` tokens at the end of a context of `context` tokens; context 0: inert rows.
struct SequenceShape {
  std::int64_t context = 0;
  std::int64_t queries = 1;
};

// A ragged batch over shuffled pages.
class RaggedBatch {
 public:
  // `pages`: of the pool; page numbers are dealt out in an order that `seed` shuffles.
  RaggedBatch(const std::vector<SequenceShape>& shapes, std::int32_t pages, unsigned seed);

  ops::Batch view() const;
  std::int32_t tokens() const { return static_cast<std::int32_t>(positions.size()); }

  std::vector<std::int32_t> token_ids, positions, sequence_of_token, query_begin, context_lengths, page_table;
  std::vector<std::int32_t> index_page_table;  // empty: as page_table
  std::int32_t stride = 0;
};

// Pages that own their memory.
class PageMemory {
 public:
  PageMemory(DType dtype, std::int32_t pages, int heads);
  ops::PagePart part();
  // A row's 128 elements, as written by a token.
  void write(std::int32_t page, int head, std::int64_t slot, const std::vector<float>& row, float scale = 1);
  std::vector<float> read(std::int32_t page, int head, std::int64_t slot, float scale = 1);
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // The content of token `position` of a sequence, in logical order, for every token of the batch's contexts: the
  // same for any page order. Fills what no token owns with NaN where the type has one.
  void fill_contexts(const RaggedBatch& batch, Random& random, bool integers, float scale = 1);

 private:
  DType dtype_;
  int heads_;
  std::vector<std::byte> bytes_;
};

// A backend with pool and workspace.
struct TestBackend {
  TestBackend(const ops::BackendOptions& options, int threads, const ops::Limits& limits);
  ops::Backend* operator->() { return backend.get(); }
  DType dtype() const { return backend->activation_dtype(); }

  ThreadPool pool;
  std::unique_ptr<ops::Backend> backend;
  std::vector<std::byte> memory;
};

ops::BackendOptions scalar_options(ops::Numerics numerics = ops::Numerics::bf16);
// "cpu" once for each instruction set that this machine has; none without AVX2.
std::vector<ops::BackendOptions> cpu_options();
// scalar first, then cpu_options().
std::vector<ops::BackendOptions> all_options();
std::string name_of(const ops::BackendOptions& options);

// Two bf16 roundings of one fp32 number that was summed in different orders: at most one step of bf16 apart (2^-7
// relative), plus the fp32 error of the sum where terms cancel: `absolute`.
void expect_bf16_close(const std::vector<float>& actual, const std::vector<float>& expected, float absolute,
                       const std::string& what);
// ‖actual - expected‖ <= bound · ‖expected‖.
void expect_norm_close(const std::vector<float>& actual, const std::vector<float>& expected, double bound,
                       const std::string& what);

}  // namespace m3::test
