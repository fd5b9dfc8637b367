// Operands too large to be made here and sent: the device makes them (RandomFill), and the host only the pages, rows and
// matrices that the judge reads of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/random_fill.h"
#include "tests/gpu/rig.h"

namespace m3::test::gpu {

// Numbers of mean square 1.
RandomFill random_fill(DType dtype, std::uint64_t key);
// ±0.5 … ±1.875 of few bits, of which sums of products with small integers are exact; with `ties` ±0.5 and ±1 alone.
RandomFill exact_fill(DType dtype, std::uint64_t key, bool ties);
// 1 everywhere.
RandomFill equal_fill(DType dtype);

// The same bytes on both sides; here, those that were asked for. Released with this object, not by clear().
class Twin {
 public:
  Twin(Rig& rig, std::int64_t bytes, const RandomFill& fill);
  std::byte* device() const { return device_->data(); }
  std::byte* host() const { return host_.get(); }
  // Here, by one thread or by all. Bytes from `begin` on, which is a multiple of 8 elements.
  void make(std::int64_t begin, std::int64_t bytes);
  void make_all();
  bool intact() const { return device_->intact(); }

 private:
  RandomFill fill_;
  std::int64_t bytes_;
  std::unique_ptr<Guarded> device_;
  std::unique_ptr<std::byte[]> host_;
};

class SeededPages {
 public:
  SeededPages(Rig& rig, DType dtype, std::int32_t pages, int heads, const RandomFill& fill);
  ops::PagePart device() const { return part(memory_.device()); }
  ops::PagePart host() const { return part(memory_.host()); }
  std::int32_t pages() const { return pages_; }
  DType dtype() const { return dtype_; }
  // Those in the batch's page table that a row of it may read: all before its position.
  void need(const RaggedBatch& batch);
  void need(std::vector<std::int32_t> pages);
  bool intact() const { return memory_.intact(); }

 private:
  ops::PagePart part(std::byte* data) const { return {dtype_, data, page_bytes_}; }
  DType dtype_;
  std::int32_t pages_;
  std::int64_t page_bytes_;
  Twin memory_;
};

// Activations [rows, columns] of mean square 1, bf16.
class SeededRows {
 public:
  SeededRows(Rig& rig, std::int64_t rows, std::int64_t columns, std::uint64_t key);
  ops::Tensor view() const { return tensor_; }
  std::vector<float> rows(std::span<const std::int32_t> which) const;

 private:
  ops::Tensor tensor_;
  RandomFill fill_;
};

// Results [rows, columns] to come, bf16 or f32; NaN until then.
class ResultRows {
 public:
  ResultRows(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns);
  ops::Tensor view() const { return tensor_; }
  // What is there now, padding checked.
  struct Values {
    std::int64_t rows = 0, columns = 0, stride = 0;
    std::vector<std::byte> bytes;
    DType dtype = DType::bf16;
    float at(std::int64_t row, std::int64_t column) const;
    std::vector<float> some(std::span<const std::int32_t> which) const;
    bool all_numbers() const;  // no NaN, and the padding is what it was
  };
  Values download();

 private:
  Rig& rig_;
  ops::Tensor tensor_;
};

// The largest ‖a - b‖ / ‖b‖ of a row, as a share of `bound`.
double worst_row(const ResultRows::Values& a, const ResultRows::Values& b, double bound);
// The largest difference of an element, as bf16_error has it.
double worst_element(const ResultRows::Values& a, const ResultRows::Values& b, double absolute);

// A weight of rows of norm 1 or so. The host's is there once need() was called.
class SeededWeight {
 public:
  SeededWeight(Rig& rig, WeightFormat format, std::int64_t rows, std::int64_t columns, std::uint64_t key);
  const WeightMatrix& device() const { return device_; }
  const WeightMatrix& host() const { return host_; }
  void need();

 private:
  WeightMatrix device_, host_;
  std::vector<Twin> parts_;  // values, scales, row scales
  bool made_ = false;
};

// Pages may appear twice, as shared prefixes do: a pool takes more sequences than it has pages for.
RaggedBatch shared_batch(const std::vector<SequenceShape>& shapes, std::int32_t pages, unsigned seed);
// Some rows of a batch, over the same page tables; for the judge, whose operations look at a row's own arrays alone.
RaggedBatch rows_of(const RaggedBatch& batch, std::span<const std::int32_t> rows);
// The first, the last and others, ascending; all where there are no more.
std::vector<std::int32_t> sample_rows(std::int64_t rows, std::int64_t count, unsigned seed);

}  // namespace m3::test::gpu
