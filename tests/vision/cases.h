// The stored reference data of tests/data/vision, made by tools/vision/make_cases.py.
#pragma once

#include <openssl/sha.h>

#include <fmt/format.h>
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/vision/patches.h"

namespace m3::test {

inline std::filesystem::path vision_data(const std::string& name) {
  return std::filesystem::path(M3_TEST_DATA) / "vision" / name;
}

// The twin of pattern() in make_cases.py.
inline vision::Picture pattern(const std::string& kind, int width, int height, std::uint32_t seed) {
  vision::Picture picture = {width, height, {}};
  picture.rgb.resize(std::size_t(width) * std::size_t(height) * 3);
  std::uint8_t* out = picture.rgb.data();
  std::uint32_t index = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x, out += 3) {
      if (kind == "noise") {
        for (int c = 0; c < 3; ++c) {
          std::uint32_t v = (index++ + seed * 40503u) * 2654435761u;
          v ^= v >> 15;
          out[c] = static_cast<std::uint8_t>(v * 2246822519u >> 24);
        }
      } else if (kind == "edges") {
        const int v = (x / 3 + y / 5) % 2 * 255;
        out[0] = static_cast<std::uint8_t>(v);
        out[1] = static_cast<std::uint8_t>(255 - v);
        out[2] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(v) + seed);
      } else {
        out[0] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(x) * 7 + seed);
        out[1] = static_cast<std::uint8_t>(y * 5);
        out[2] = static_cast<std::uint8_t>(x + y);
      }
    }
  }
  return picture;
}

std::string sha256(const auto& values) {
  const auto bytes = std::as_bytes(std::span(values));
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

// A stored file's bytes, to be damaged.
inline std::vector<std::byte> read_bytes(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {file.bytes().begin(), file.bytes().end()};
}

}  // namespace m3::test
