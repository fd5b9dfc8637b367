#include "tests/support/xz.h"

#include <lzma.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <stdexcept>

#include "src/base/mapped_file.h"

namespace m3::test {

std::string read_xz(const std::filesystem::path& path) {
  const MappedFile file(path);
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, UINT64_MAX, 0) != LZMA_OK) throw std::runtime_error("liblzma does not start");
  stream.next_in = reinterpret_cast<const std::uint8_t*>(file.bytes().data());
  stream.avail_in = file.bytes().size();
  std::string text;
  std::array<char, 65536> buffer{};
  lzma_ret status = LZMA_OK;
  while (status == LZMA_OK) {
    stream.next_out = reinterpret_cast<std::uint8_t*>(buffer.data());
    stream.avail_out = buffer.size();
    status = lzma_code(&stream, LZMA_FINISH);
    text.append(buffer.data(), buffer.size() - stream.avail_out);
  }
  lzma_end(&stream);
  if (status != LZMA_STREAM_END) throw std::runtime_error(path.string() + " is not a whole .xz file");
  return text;
}

std::filesystem::path unpack_xz(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::filesystem::path to = folder / path.stem();
  std::ofstream(to, std::ios::binary) << read_xz(path);
  return to;
}

}  // namespace m3::test
