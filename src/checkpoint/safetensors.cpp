#include "src/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/json_fields.h"
#include "src/checkpoint/problems.h"

namespace m3 {

namespace {

constexpr std::uint64_t header_limit = 100'000'000;  // the format's own limit
constexpr std::size_t rank_limit = 8;

std::optional<DType> parse_dtype(const std::string& name) {
  if (name == "F8_E8M0") return DType::u8;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::u8, DType::i8, DType::i32,
                            DType::i64, DType::boolean, DType::f64, DType::i16, DType::f8_e5m2}) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> whole_number(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

StoredTensor parse_entry(const std::string& name, const Json& entry, std::span<const std::byte> data,
                         const std::string& origin) {
  const auto bad = [&](const std::string& what) { fail("{}: tensor {}: {}", origin, printable(name), what); };
  if (!entry.is_object()) bad("its header entry is not an object");
  const auto dtype = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end()) {
    bad("dtype, shape or data_offsets is missing");
  }
  StoredTensor tensor;
  tensor.name = name;
  const auto parsed = dtype->is_string() ? parse_dtype(dtype->get<std::string>()) : std::nullopt;
  if (!parsed) bad(fmt::format("dtype {} is not one that m3 reads", describe(*dtype)));
  tensor.dtype = *parsed;
  if (!shape->is_array() || shape->size() > rank_limit) {
    bad(fmt::format("shape is {}; a list of at most {} sizes is accepted", describe(*shape), rank_limit));
  }
  std::uint64_t size = dtype_size(tensor.dtype);
  bool overflow = false;
  bool zero = false;
  for (const Json& item : *shape) {
    const auto extent = whole_number(item);
    if (!extent || *extent > static_cast<std::uint64_t>(INT64_MAX))
      bad(fmt::format("size {} in its shape", describe(item)));
    tensor.shape.push_back(static_cast<std::int64_t>(*extent));
    zero = zero || *extent == 0;
    overflow = __builtin_mul_overflow(size, *extent, &size) || overflow;
  }
  if (zero) size = 0;
  if (overflow && !zero) bad(fmt::format("shape {} overflows", describe_shape(tensor.shape)));
  if (!offsets->is_array() || offsets->size() != 2) bad("data_offsets is not a pair");
  const auto begin = whole_number((*offsets)[0]);
  const auto end = whole_number((*offsets)[1]);
  if (!begin || !end || *begin > *end) bad("data_offsets is not an ascending pair of whole numbers");
  if (*end > data.size()) {
    bad(fmt::format("its data ends at byte {} of {} (is the file truncated?)", *end, data.size()));
  }
  if (*end - *begin != size) {
    bad(fmt::format("{} {} takes {} bytes, its offsets give {}", dtype_name(tensor.dtype), describe_shape(tensor.shape),
                    size, *end - *begin));
  }
  tensor.bytes = data.subspan(static_cast<std::size_t>(*begin), static_cast<std::size_t>(size));
  return tensor;
}

// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<StoredTensor>& tensors, std::span<const std::byte> data, const std::string& origin) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    if (a.bytes.data() != b.bytes.data()) return a.bytes.data() < b.bytes.data();
    if (a.bytes.size() != b.bytes.size()) return a.bytes.size() < b.bytes.size();
    return a.name < b.name;
  });
  const std::byte* next = data.data();
  const StoredTensor* last = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.bytes.data() < next) {
      fail("{}: tensors {} and {} overlap", origin, printable(last->name), printable(tensor.name));
    }
    if (tensor.bytes.data() > next) {
      fail("{}: {} bytes before tensor {} belong to no tensor", origin, tensor.bytes.data() - next,
           printable(tensor.name));
    }
    next = tensor.bytes.data() + tensor.bytes.size();
    last = &tensor;
  }
  const auto rest = data.data() + data.size() - next;
  if (rest != 0) {
    fail("{}: {} bytes after {} belong to no tensor", origin, rest,
         last == nullptr ? "the header" : "the last tensor, " + printable(last->name) + ",");
  }
}

bool plain_file_name(const std::string& name) {
  if (name.empty() || name == "." || name == "..") return false;
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

[[noreturn]] void fail_without_safetensors(const std::filesystem::path& directory) {
  std::string gguf;
  std::string pickled;
  std::string other;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension == ".gguf") gguf = name;
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") pickled = name;
    if (extension == ".safetensors") other = name;
  }
  const std::string where = directory.string();
  if (!other.empty()) {
    fail("{}: found {} but neither model.safetensors nor model.safetensors.index.json; shards need their index file",
         where, printable(other));
  }
  if (!gguf.empty()) {
    fail("{}: {} is a GGUF file; m3 reads safetensors in the published layout: give it the original checkpoint", where,
         printable(gguf));
  }
  if (!pickled.empty()) {
    fail("{}: {} is a pickled PyTorch file; m3 reads safetensors only: save it again with safe_serialization", where,
         printable(pickled));
  }
  fail("{}: no model.safetensors and no model.safetensors.index.json", where);
}

}  // namespace

std::int64_t StoredTensor::elements() const { return static_cast<std::int64_t>(bytes.size() / dtype_size(dtype)); }

std::string describe_shape(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string describe(const StoredTensor& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), describe_shape(tensor.shape));
}

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin) {
  if (bytes.size() < 8)
    fail("{}: {} bytes are too few for a safetensors file (is it truncated?)", origin, bytes.size());
  std::uint64_t header_size = 0;
  for (std::size_t i = 0; i < 8; ++i) header_size |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  if (header_size > header_limit) {
    fail("{}: a safetensors header of {} bytes is over the limit of {}", origin, header_size, header_limit);
  }
  if (header_size > bytes.size() - 8) {
    fail("{}: the safetensors header of {} bytes leaves the file of {} bytes (is it truncated?)", origin, header_size,
         bytes.size());
  }
  const auto text = bytes.subspan(8, static_cast<std::size_t>(header_size));
  const auto data = bytes.subspan(8 + static_cast<std::size_t>(header_size));
  const Json header =
      parse_json_object({reinterpret_cast<const char*>(text.data()), text.size()}, origin + ": safetensors header");
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(parse_entry(name, entry, data, origin));
  }
  check_cover(tensors, data, origin);
  return tensors;
}

TensorFiles TensorFiles::open_file(const std::filesystem::path& file) {
  TensorFiles result;
  result.files_.emplace_back(file);
  result.tensors_ = parse_safetensors(result.files_.back().bytes(), file.string());
  for (std::size_t i = 0; i < result.tensors_.size(); ++i) result.by_name_.emplace(result.tensors_[i].name, i);
  return result;
}

TensorFiles TensorFiles::open(const std::filesystem::path& directory) {
  const auto single = directory / "model.safetensors";
  const auto index_path = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) {
    if (!std::filesystem::exists(single)) fail_without_safetensors(directory);
    return open_file(single);
  }
  const Json index = parse_json_object(read_text_file(index_path, header_limit), index_path.string());
  const JsonFields fields(index, index_path.string());
  const auto weight_map = fields.object("weight_map");
  if (!weight_map) fields.missing("weight_map", "an index file maps each tensor to its shard");

  ProblemList problems;
  std::vector<std::string> shards;
  std::unordered_map<std::string, std::string> wanted;
  for (const auto& [name, shard] : weight_map->json().items()) {
    if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>())) {
      fail("{}: weight_map gives {} for tensor {}; accepted: the name of a file beside the index", index_path.string(),
           describe(shard), printable(name));
    }
    wanted.emplace(name, shard.get<std::string>());
    shards.push_back(shard.get<std::string>());
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  if (std::filesystem::exists(single) && !std::binary_search(shards.begin(), shards.end(), "model.safetensors")) {
    fail("{}: both model.safetensors and an index of other files are there; remove the one that is not meant",
         directory.string());
  }
  for (const std::string& shard : shards) {
    if (std::filesystem::exists(directory / shard)) continue;
    problems.add(shard, "a file that model.safetensors.index.json names", "no such file");
  }
  problems.check(directory.string());

  TensorFiles result;
  for (const std::string& shard : shards) {
    result.files_.emplace_back(directory / shard);
    for (StoredTensor& tensor : parse_safetensors(result.files_.back().bytes(), (directory / shard).string())) {
      const auto entry = wanted.find(tensor.name);
      if (result.by_name_.contains(tensor.name)) {
        problems.add(tensor.name, "one shard that holds it", "a second copy in " + shard);
        continue;
      }
      if (entry == wanted.end()) {
        problems.add(tensor.name, "an entry in model.safetensors.index.json", "none, but the tensor is in " + shard);
      } else if (entry->second != shard) {
        problems.add(tensor.name, "it in " + printable(entry->second) + ", as the index says", "it in " + shard);
      }
      result.by_name_.emplace(tensor.name, result.tensors_.size());
      result.tensors_.push_back(std::move(tensor));
    }
  }
  for (const auto& [name, shard] : weight_map->json().items()) {
    if (result.by_name_.contains(name)) continue;
    problems.add(name, "it in " + printable(shard.get<std::string>()) + ", as the index says", "no such tensor there");
  }
  problems.check(directory.string());
  return result;
}

const StoredTensor* TensorFiles::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::int64_t TensorFiles::file_bytes() const {
  std::int64_t total = 0;
  for (const MappedFile& file : files_) total += static_cast<std::int64_t>(file.bytes().size());
  return total;
}

}  // namespace m3
