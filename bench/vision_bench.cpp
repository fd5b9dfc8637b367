// A picture's way from file to patches, one thread. M3_BENCH_IMAGE names a picture file; tools/vision/compare_speed.py
// makes some, sets it and times Pillow and torchvision on the same.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <optional>

#include "src/base/mapped_file.h"
#include "src/vision/preprocess.h"
#include "src/vision/resize.h"

namespace m3::vision {
namespace {

const MappedFile* bench_file(benchmark::State& state) {
  static const std::optional<MappedFile> file = [] {
    const char* path = std::getenv("M3_BENCH_IMAGE");
    return path == nullptr ? std::nullopt : std::optional<MappedFile>(path);
  }();
  if (!file) state.SkipWithError("M3_BENCH_IMAGE names no picture");
  return file ? &*file : nullptr;
}

SizeOptions sizes(const benchmark::State& state) {
  return {.rule = state.range(0) == 0 ? SizeRule::long_side : SizeRule::area};
}

void picture_decode(benchmark::State& state) {
  const MappedFile* file = bench_file(state);
  if (file == nullptr) return;
  for (auto _ : state) benchmark::DoNotOptimize(decode_image(file->bytes()).picture.rgb.data());
}
BENCHMARK(picture_decode)->Unit(benchmark::kMillisecond);

void picture_resize(benchmark::State& state) {
  const MappedFile* file = bench_file(state);
  if (file == nullptr) return;
  const Picture picture = decode_image(file->bytes()).picture;
  const Size size = resized_size({picture.width, picture.height}, sizes(state));
  for (auto _ : state) benchmark::DoNotOptimize(resize(picture, size.width, size.height).rgb.data());
}
BENCHMARK(picture_resize)->ArgName("area")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void picture_patches(benchmark::State& state) {
  const MappedFile* file = bench_file(state);
  if (file == nullptr) return;
  const Picture picture = decode_image(file->bytes()).picture;
  const Size size = resized_size({picture.width, picture.height}, sizes(state));
  const Picture resized = resize(picture, size.width, size.height);
  for (auto _ : state) benchmark::DoNotOptimize(make_pixels({&resized, 1}).values.data());
}
BENCHMARK(picture_patches)->ArgName("area")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void picture_whole(benchmark::State& state) {
  const MappedFile* file = bench_file(state);
  if (file == nullptr) return;
  ImageOptions options;
  options.size = sizes(state);
  for (auto _ : state) benchmark::DoNotOptimize(image_pixels(file->bytes(), options).values.data());
}
BENCHMARK(picture_whole)->ArgName("area")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace m3::vision

BENCHMARK_MAIN();
