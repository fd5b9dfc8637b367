// Pictures of any size for tests, and a small model that takes none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "m3/engine.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::test {

// A BMP of one bit a pixel, so that large ones are small files; `seed` changes its content.
std::string bitmap(int width, int height, unsigned seed = 0);
// A GIF of such a canvas whose every frame covers one pixel and lasts a tenth of a second: 19 bytes a frame.
std::string thin_gif(int width, int height, int frames);
// "data:TYPE;base64,…"
std::string data_url(std::string_view bytes, std::string_view type = "image/png");
std::string base64(std::string_view bytes);
// A file of tests/data/vision.
std::string vision_file(std::string_view name);

// What an engine of the published shapes would say of itself, with the ids of that tokenizer.
MediaInfo media_info(const Tokenizer& tokenizer);

// A folder with the checkpoint that ships, less its vision tower. Made once a process.
const std::filesystem::path& blind_checkpoint();

}  // namespace m3::test
