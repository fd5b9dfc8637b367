#include "src/checkpoint/schemes.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/error.h"
#include "src/base/number_formats.h"

namespace m3 {

namespace {

using Shape = std::vector<std::int64_t>;

Shape shape_of(std::span<const std::int64_t> lead, std::int64_t last) {
  Shape shape(lead.begin(), lead.end());
  shape.push_back(last);
  return shape;
}

std::int64_t product(std::span<const std::int64_t> lead) {
  std::int64_t rows = 1;
  for (const std::int64_t size : lead) rows *= size;
  return rows;
}

WeightFormat plain_format(DType dtype) {
  switch (dtype) {
    case DType::f32: return WeightFormat::f32;
    case DType::f16: return WeightFormat::f16;
    case DType::bf16: return WeightFormat::bf16;
    default: fail_internal("plain_format: {}", dtype_name(dtype));
  }
}

std::string wanted(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", dtype_name(dtype), describe_shape(shape));
}

// Works on one linear; each step reports and says whether to go on.
class Resolver {
 public:
  Resolver(const LinearTensors& tensors, std::span<const std::int64_t> lead, std::int64_t columns, AlignedStore& store,
           ProblemList& problems)
      : tensors_(tensors), lead_(lead), columns_(columns), store_(store), problems_(problems) {
    matrix_.rows = product(lead);
    matrix_.columns = columns;
  }

  std::optional<WeightMatrix> run(const std::string& name) {
    if (tensors_.weight != nullptr && tensors_.weight_packed != nullptr) {
      problems_.add(name, "either weight or weight_packed", "both");
      return std::nullopt;
    }
    const StoredTensor& codes = tensors_.weight != nullptr ? *tensors_.weight : *tensors_.weight_packed;
    if (!resolve(codes)) return std::nullopt;
    for (const StoredTensor* input : {tensors_.input_scale, tensors_.input_global_scale}) {
      if (input != nullptr && !resolve_scalar(*input, 0, problems_)) return std::nullopt;
    }
    return matrix_;
  }

 private:
  bool resolve(const StoredTensor& codes) {
    if (tensors_.weight_packed != nullptr) return packed_nvfp4(codes);
    if (is_plain(codes.dtype)) return plain(codes);
    if (codes.dtype == DType::f8_e4m3) return eight_bits(codes);
    if (codes.dtype == DType::u8) return four_bits(codes);
    return bad(codes, fmt::format("BF16, F16, F32, F8_E4M3 {} or U8 {}", describe_shape(shape_of(lead_, columns_)),
                                  describe_shape(shape_of(lead_, columns_ / 2))));
  }

  bool bad(const StoredTensor& tensor, std::string expected) {
    problems_.add(tensor.name, std::move(expected), describe(tensor));
    return false;
  }

  bool shaped(const StoredTensor& tensor, std::int64_t last) {
    const Shape shape = shape_of(lead_, last);
    return tensor.shape == shape || bad(tensor, wanted(tensor.dtype, shape));
  }

  // `divisor` columns share a code byte or a scale.
  bool divisible(const StoredTensor& tensor, std::int64_t divisor) {
    return columns_ % divisor == 0 ||
           bad(tensor, fmt::format("a format that divides its {} columns (this one needs a multiple of {})", columns_,
                                   divisor));
  }

  bool nothing_beside(const StoredTensor* scale, std::string_view format) {
    if (scale == nullptr) return true;
    problems_.add(scale->name, fmt::format("no such tensor beside a weight in {}", format), describe(*scale));
    return false;
  }

  bool plain(const StoredTensor& codes) {
    matrix_.format = plain_format(codes.dtype);
    matrix_.values = store_.data(codes);
    const std::string_view name = weight_format_name(matrix_.format);
    return shaped(codes, columns_) && nothing_beside(tensors_.weight_scale, name) &&
           nothing_beside(tensors_.weight_scale_2, name) && nothing_beside(tensors_.weight_global_scale, name);
  }

  bool eight_bits(const StoredTensor& codes) {
    matrix_.values = store_.data(codes);
    if (!shaped(codes, columns_)) return false;
    const StoredTensor* scale = tensors_.weight_scale;
    if (scale == nullptr) {
      problems_.add(codes.name, "a weight_scale or weight_scale_inv beside F8_E4M3 codes", "none");
      return false;
    }
    if (!nothing_beside(tensors_.weight_scale_2, "fp8") || !nothing_beside(tensors_.weight_global_scale, "fp8")) {
      return false;
    }
    if (scale->dtype == DType::u8) {
      matrix_.format = WeightFormat::mxfp8;
      matrix_.scales = scale->bytes.data();
      return divisible(codes, 32) && shaped(*scale, columns_ / 32);
    }
    matrix_.format = WeightFormat::fp8;
    if (scale->dtype != DType::f32) return bad(*scale, eight_bit_scales());
    if (scale->elements() == 1 && scale->shape.size() <= 1 && matrix_.rows != 1) {
      const auto value = resolve_scalar(*scale, 0, problems_);
      matrix_.tensor_scale = value.value_or(1);
      return value.has_value();
    }
    const Shape rows(lead_.begin(), lead_.end());
    if (scale->shape != rows && scale->shape != shape_of(lead_, 1)) return bad(*scale, eight_bit_scales());
    matrix_.row_scales = reinterpret_cast<const float*>(store_.data(*scale));
    return true;
  }

  std::string eight_bit_scales() const {
    return fmt::format("U8 {} (mxfp8), F32 {} (one a row) or F32 [] (one)",
                       describe_shape(shape_of(lead_, columns_ / 32)), describe_shape(lead_));
  }

  bool four_bits(const StoredTensor& codes) {
    matrix_.values = store_.data(codes);
    const StoredTensor* scale = tensors_.weight_scale;
    if (scale == nullptr) {
      problems_.add(codes.name, "a weight_scale beside 4-bit codes", "none");
      return false;
    }
    if (!divisible(codes, 2) || !shaped(codes, columns_ / 2)) return false;
    if (scale->dtype == DType::u8) {
      matrix_.format = WeightFormat::mxfp4;
      matrix_.scales = scale->bytes.data();
      return divisible(codes, 32) && shaped(*scale, columns_ / 32) &&
             nothing_beside(tensors_.weight_scale_2, "mxfp4") && nothing_beside(tensors_.weight_global_scale, "mxfp4");
    }
    return nvfp4_scales(codes, *scale) && nothing_beside(tensors_.weight_global_scale, "nvfp4") &&
           tensor_scale(codes, tensors_.weight_scale_2, "weight_scale_2", false);
  }

  bool packed_nvfp4(const StoredTensor& codes) {
    matrix_.values = store_.data(codes);
    if (codes.dtype != DType::u8) return bad(codes, wanted(DType::u8, shape_of(lead_, columns_ / 2)));
    const StoredTensor* scale = tensors_.weight_scale;
    if (scale == nullptr) {
      problems_.add(codes.name, "a weight_scale beside weight_packed", "none");
      return false;
    }
    return divisible(codes, 2) && shaped(codes, columns_ / 2) && nvfp4_scales(codes, *scale) &&
           nothing_beside(tensors_.weight_scale_2, "weight_packed") &&
           tensor_scale(codes, tensors_.weight_global_scale, "weight_global_scale", true);
  }

  bool nvfp4_scales(const StoredTensor& codes, const StoredTensor& scale) {
    matrix_.format = WeightFormat::nvfp4;
    matrix_.scales = scale.bytes.data();
    if (scale.dtype != DType::f8_e4m3) {
      return bad(scale,
                 fmt::format("U8 {} (mxfp4) or F8_E4M3 {} (nvfp4)", describe_shape(shape_of(lead_, columns_ / 32)),
                             describe_shape(shape_of(lead_, columns_ / 16))));
    }
    return divisible(codes, 16) && shaped(scale, columns_ / 16);
  }

  // weight_scale_2 multiplies; weight_global_scale is the encoder's and divides (addenda §6).
  bool tensor_scale(const StoredTensor& codes, const StoredTensor* scale, std::string_view part, bool divides) {
    if (scale == nullptr) {
      problems_.add(codes.name, fmt::format("a {} beside it", part), "none");
      return false;
    }
    const auto value = resolve_scalar(*scale, divides ? std::numeric_limits<float>::min() : 0.0f, problems_);
    if (!value) return false;
    matrix_.tensor_scale = divides ? 1.0f / *value : *value;
    return true;
  }

  const LinearTensors& tensors_;
  std::span<const std::int64_t> lead_;
  std::int64_t columns_;
  AlignedStore& store_;
  ProblemList& problems_;
  WeightMatrix matrix_;
};

}  // namespace

bool is_plain(WeightFormat format) {
  return format == WeightFormat::f32 || format == WeightFormat::f16 || format == WeightFormat::bf16;
}

bool is_plain(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

std::optional<WeightMatrix> resolve_linear(const std::string& name, const LinearTensors& tensors,
                                           std::span<const std::int64_t> lead, std::int64_t columns,
                                           AlignedStore& store, ProblemList& problems) {
  return Resolver(tensors, lead, columns, store, problems).run(name);
}

std::optional<WeightMatrix> resolve_plain(const StoredTensor& tensor, std::int64_t rows, std::int64_t columns,
                                          AlignedStore& store, ProblemList& problems) {
  if (!is_plain(tensor.dtype) || tensor.shape != Shape{rows, columns}) {
    problems.add(tensor.name, fmt::format("BF16, F16 or F32 [{}, {}]", rows, columns), describe(tensor));
    return std::nullopt;
  }
  WeightMatrix matrix;
  matrix.format = plain_format(tensor.dtype);
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.values = store.data(tensor);
  return matrix;
}

std::optional<float> resolve_scalar(const StoredTensor& tensor, float lowest, ProblemList& problems) {
  if (!is_plain(tensor.dtype) || tensor.elements() != 1 || tensor.shape.size() > 1) {
    problems.add(tensor.name, "F32 [] or [1]", describe(tensor));
    return std::nullopt;
  }
  const float value = widen(tensor).front();
  if (!std::isfinite(value) || value < lowest) {
    problems.add(tensor.name, lowest > 0 ? "a positive number" : "a finite number, not negative",
                 fmt::format("{}", value));
    return std::nullopt;
  }
  return value;
}

}  // namespace m3
