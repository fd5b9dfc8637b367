#include "tests/support/pictures.h"

#include <openssl/evp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_directory.h"

namespace m3::test {

std::string bitmap(int width, int height, unsigned seed) {
  const int row = (width + 31) / 32 * 4;
  const auto bytes = static_cast<std::size_t>(row) * static_cast<std::size_t>(height);
  std::string out = "BM";
  const auto put = [&](std::uint32_t value, int size) {
    for (int i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  };
  put(static_cast<std::uint32_t>(62 + bytes), 4);
  put(0, 4);
  put(62, 4);
  put(40, 4);
  put(static_cast<std::uint32_t>(width), 4);
  put(static_cast<std::uint32_t>(height), 4);
  put(1, 2);
  put(1, 2);
  for (int i = 0; i < 2; ++i) put(0, 4);
  for (int i = 0; i < 2; ++i) put(2835, 4);
  put(2, 4);
  put(0, 4);
  put(0x00203040, 4);
  put(0x00f0e0d0, 4);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::size_t i = 0; i < bytes; ++i) {
    state = state * 1664525U + 1013904223U;
    out += static_cast<char>(state >> 24);
  }
  return out;
}

std::string thin_gif(int width, int height, int frames) {
  const auto low = [](int value) { return static_cast<char>(value & 0xff); };
  const auto high = [](int value) { return static_cast<char>(value >> 8 & 0xff); };
  std::string out = "GIF89a";
  for (const char c : {low(width), high(width), low(height), high(height), '\x80', '\0', '\0'}) out += c;
  out += std::string("\0\0\0\xff\xff\xff", 6);
  for (int i = 0; i < frames; ++i) {
    out += std::string("\x21\xf9\x04\x04\x0a\0\0\0", 8);
    out += std::string("\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0", 15);
  }
  return out + ";";
}

std::string base64(std::string_view bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string data_url(std::string_view bytes, std::string_view type) {
  return "data:" + std::string(type) + ";base64," + base64(bytes);
}

std::string vision_file(std::string_view name) {
  return read_file(std::filesystem::path(M3_TEST_DATA) / "vision" / name);
}

MediaInfo media_info(const Tokenizer& tokenizer) {
  MediaInfo info;
  info.unavailable = "";
  info.image_id = tokenizer.id_of("]<]image[>[");
  info.video_id = tokenizer.id_of("]<]video[>[");
  info.max_patches = 65536;
  return info;
}

const std::filesystem::path& blind_checkpoint() {
  static const TemporaryDirectory directory;
  static const std::filesystem::path made = [] {
    const std::filesystem::path shipped = std::filesystem::path(M3_MODELS) / "m3-tiny-chat";
    const std::filesystem::path& path = directory.path();
    for (const auto& entry : std::filesystem::directory_iterator(shipped)) {
      const std::string name = entry.path().filename().string();
      if (name != "config.json" && name != "model.safetensors.index.json") {
        std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), path / name);
      }
    }
    nlohmann::json config = nlohmann::json::parse(read_file(shipped / "config.json"));
    config.erase("vision_config");
    write_file(path / "config.json", config.dump());
    nlohmann::json index = nlohmann::json::parse(read_file(shipped / "model.safetensors.index.json"));
    nlohmann::json text_only = nlohmann::json::object();
    for (const auto& [name, file] : index["weight_map"].items()) {
      if (name.starts_with("language_model.")) text_only[name] = file;
    }
    index["weight_map"] = std::move(text_only);
    write_file(path / "model.safetensors.index.json", index.dump());
    return path;
  }();
  return made;
}

}  // namespace m3::test
