// The page for people: src/server/page, embedded into the program, and the state that its panel shows.
#pragma once

#include <span>
#include <string_view>

namespace m3::server {

struct PageFile {
  std::string_view name;  // "page.js"
  std::span<const unsigned char> bytes;
};

// In the order of their names; made at build time (cmake/M3EmbedFiles.cmake).
std::span<const PageFile> embedded_page_files();

}  // namespace m3::server
