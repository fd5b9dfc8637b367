// What the GPU tests share: memory of the device between canaries, copies of the host's test data on it, and the table of
// results. Data comes from tests/support/ops_data.h, expected results from the scalar judge.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/ops/backends.h"
#include "tests/support/ops_data.h"

namespace m3::test::gpu {

// Worst errors by operation and format, each as a share of its tolerance.
class Results {
 public:
  // `error` of at most 1 passes. NaN fails.
  void add(const std::string& operation, const std::string& format, double error, const std::string& tolerance,
           const std::string& what);
  // 0 or infinity.
  void add_exact(const std::string& operation, const std::string& format, bool equal, const std::string& what) {
    add(operation, format, equal ? 0 : 2, "exact", what);
  }
  // Prints the table, the first failures and the line of counts; true where all passed.
  bool print() const;

 private:
  struct Row {
    int cases = 0, failed = 0;
    double worst = 0;
    std::string tolerance;
  };
  std::map<std::pair<std::string, std::string>, Row> rows_;
  std::vector<std::string> failures_;
};

// Memory of the device with 256 bytes of canary on either side.
class Guarded {
 public:
  Guarded(ops::Backend& backend, std::size_t bytes);
  std::byte* data() const { return memory_.data() + guard; }
  std::size_t size() const { return size_; }
  bool intact() const;

  static constexpr std::size_t guard = 256;

 private:
  ops::Backend& backend_;
  ops::Memory memory_;
  std::size_t size_;
};

// The backend under test with its workspace, and everything placed on the device for the case at hand.
class Rig {
 public:
  explicit Rig(bool deterministic);
  ops::Backend& backend() { return *backend_; }
  bool deterministic() const { return deterministic_; }
  ops::Backend* operator->() { return backend_.get(); }

  // Binds a workspace for the limits, poisoned with NaN.
  void bind(const ops::Limits& limits);
  // Bytes on the device, kept until clear().
  std::byte* place(std::span<const std::byte> bytes);
  template <typename T>
  T* place(const std::vector<T>& values) {
    return reinterpret_cast<T*>(place(std::as_bytes(std::span(values))));
  }
  std::span<const float> floats(const std::vector<float>& values) { return {place(values), values.size()}; }
  // Results to come: filled with 0xff, NaN in every type.
  std::byte* reserve(std::size_t bytes);
  // Without the fill, for large pools.
  std::byte* reserve_raw(std::size_t bytes);
  WeightMatrix place(const WeightMatrix& weight);
  ops::MlpWeights place(const ops::MlpWeights& mlp) { return {place(mlp.gate), place(mlp.up), place(mlp.down)}; }
  ops::Batch place(const RaggedBatch& batch);
  template <typename T>
  std::vector<T> download(const T* from, std::size_t count) {
    std::vector<T> values(count);
    backend_->download(std::as_writable_bytes(std::span(values)), reinterpret_cast<const std::byte*>(from));
    return values;
  }
  // Checks all canaries and releases the case's memory.
  void clear(Results& results, const std::string& operation);

 private:
  bool deterministic_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<ThreadPool> pool_;
  std::deque<Guarded> memory_;
  std::unique_ptr<Guarded> workspace_;
};

// A matrix on the device; rows are `padding` elements further apart than they are long, and the padding is a canary too.
class DeviceMatrix {
 public:
  DeviceMatrix(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<float>& values,
               int padding = 8);
  // For results: NaN.
  DeviceMatrix(Rig& rig, DType dtype, std::int64_t rows, std::int64_t columns, int padding = 8);
  ops::Tensor view() const { return tensor_; }
  std::vector<float> values();  // [rows · columns]
  bool padding_intact();

 private:
  void upload(const std::vector<float>* values);
  Rig& rig_;
  ops::Tensor tensor_;
};

// |actual - expected| as a share of two steps of bf16 plus `absolute`; infinity for NaN against a number.
double bf16_error(const std::vector<float>& actual, const std::vector<float>& expected, double absolute);
double absolute_error(const std::vector<float>& actual, const std::vector<float>& expected, double tolerance);
// ‖actual - expected‖ / (bound · ‖expected‖).
double norm_error(const std::vector<float>& actual, const std::vector<float>& expected, double bound);

struct Options {
  bool quick = false;
  std::string filter;
  std::string format;  // of experts' weights, this one alone; empty: all
};
// Each adds its cases to the results.
void test_rows(Rig& rig, Results& results, const Options& options);       // embed, rotary_table, add_norm
void test_linear(Rig& rig, Results& results, const Options& options);     // linear, logits
void test_qkv(Rig& rig, Results& results, const Options& options);        // qkv_finish, copy_pages
void test_select(Rig& rig, Results& results, const Options& options);     // select_blocks
void test_attention(Rig& rig, Results& results, const Options& options);  // attend_dense, attend_sparse
void test_experts(Rig& rig, Results& results, const Options& options);    // route, experts, mlp
void test_sample(Rig& rig, Results& results, const Options& options);     // sample, passes
void test_limits(Rig& rig, Results& results, const Options& options);     // refusals, the largest sizes
void test_vision(Rig& rig, Results& results, const Options& options);     // the vision tower's
// Contexts up to 1M, 256 sequences, prompts of 8192 rows; the same for products and experts at their true widths.
void test_long(Rig& rig, Results& results, const Options& options);  // select_blocks, attend_*
void test_wide(Rig& rig, Results& results, const Options& options);  // linear, logits, route, experts
// Numbers at the ends of their types; activations in fp8.
void test_extremes(Rig& rig, Results& results, const Options& options);

// The judge's threads, shared.
ThreadPool& workers();
ops::Backend& judge(const ops::Limits& limits);

}  // namespace m3::test::gpu
