#include "src/checkpoint/safetensors_writer.h"

#include <array>
#include <utility>

#include "src/base/error.h"
#include "src/checkpoint/json_fields.h"

namespace m3 {

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path) : file_(std::move(path)) {}

void SafetensorsWriter::metadata(const std::string& key, const std::string& value) { metadata_[key] = value; }

void SafetensorsWriter::declare(const std::string& name, DType dtype, std::span<const std::int64_t> shape) {
  if (header_written_) fail_internal("safetensors writer: {} declared after the first write", name);
  std::uint64_t bytes = dtype_size(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
      fail_internal("safetensors writer: {} has an impossible shape", name);
    }
  }
  if (!by_name_.emplace(name, entries_.size()).second) fail_internal("safetensors writer: {} declared twice", name);
  entries_.push_back({name, dtype, {shape.begin(), shape.end()}, bytes});
}

void SafetensorsWriter::write_header() {
  // Put together as text: a JSON object that keeps this order searches all keys for each new one.
  const auto quoted = [](const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string text = "{";
  if (!metadata_.empty()) text += "\"__metadata__\":" + quoted(metadata_);
  std::uint64_t offset = 0;
  for (const Entry& entry : entries_) {
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", quoted(entry.name),
                        dtype_name(entry.dtype), quoted(entry.shape), offset, offset + entry.bytes);
    offset += entry.bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data begin at a multiple of 8
  std::array<char, 8> size{};
  for (std::size_t i = 0; i < 8; ++i) size[i] = static_cast<char>(text.size() >> (8 * i));
  file_.write(std::string_view(size.data(), size.size()));
  file_.write(text);
  header_written_ = true;
}

// Empty tensors take no write() call.
void SafetensorsWriter::skip_complete() {
  while (current_ < entries_.size() && written_ == entries_[current_].bytes) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  if (!header_written_) write_header();
  if (!by_name_.contains(name)) fail_internal("safetensors writer: {} was not declared", name);
  if (bytes.empty()) return;
  skip_complete();
  if (current_ == entries_.size() || entries_[current_].name != name) {
    fail_internal("safetensors writer: {} written out of order", name);
  }
  if (bytes.size() > entries_[current_].bytes - written_)
    fail_internal("safetensors writer: too much data for {}", name);
  file_.write(bytes);
  written_ += bytes.size();
}

void SafetensorsWriter::commit() {
  if (!header_written_) write_header();
  skip_complete();
  if (current_ != entries_.size()) fail_internal("safetensors writer: {} is not complete", entries_[current_].name);
  file_.commit();
}

}  // namespace m3
