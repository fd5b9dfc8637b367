// Reference data that is stored compressed.
#pragma once

#include <filesystem>
#include <string>

namespace m3::test {

// The content of an .xz file. Errors: it is not a whole one.
std::string read_xz(const std::filesystem::path& path);

// The same written to `folder`, under its name without ".xz", for readers that want a file.
std::filesystem::path unpack_xz(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace m3::test
