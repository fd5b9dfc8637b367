// Any text as the URL of a picture: data: is decoded, web URLs are taken apart, the rest is refused with an m3::Error.
// Nothing is opened and nobody is asked.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/base/error.h"
#include "src/vision/source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const m3::vision::WebUrl base = m3::vision::parse_web_url("https://example.org/a/b?c");
    if (m3::vision::resolve_redirect(base, text).host.empty()) m3::fail_internal("a URL without a host");
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  try {
    m3::vision::load_source(text, {}, 1 << 16);
  } catch (const m3::Error& error) {
    if (error.kind() == m3::ErrorKind::internal) throw;
  }
  return 0;
}
