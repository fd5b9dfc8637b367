// Files of patches, and m3 trace on them.
#include "src/cli/pixel_file.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "src/base/error.h"
#include "src/checkpoint/safetensors.h"
#include "tests/support/golden_case.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace m3::cli {
namespace {

using test::FileTensor;

template <typename T>
FileTensor tensor(const std::string& name, DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

std::vector<Media> read(const std::vector<FileTensor>& tensors) {
  const test::TemporaryDirectory directory;
  test::write_safetensors(directory / "pixels", tensors);
  return read_pixel_file((directory / "pixels").string());
}

std::string error_of(const std::vector<FileTensor>& tensors) {
  try {
    read(tensors);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> counted(std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i));
  return values;
}

TEST(PixelFile, CutsPatchesByTheirGrids) {
  const std::vector<Media> media = read({tensor<std::int64_t>("grid", DType::i64, {3, 3}, {1, 2, 2, 2, 2, 2, 1, 1, 3}),
                                         tensor("pixel_values", DType::f32, {15, 4}, counted(60))});
  ASSERT_EQ(media.size(), 3u);
  EXPECT_EQ(media[0].kind, Media::Kind::image);
  EXPECT_EQ(media[1].kind, Media::Kind::video);
  EXPECT_EQ(media[2].w, 3);
  EXPECT_EQ(media[1].pixels->size(), 32u);
  EXPECT_EQ(media[1].pixels->front(), 16.0f);
  EXPECT_EQ(media[2].pixels->back(), 59.0f);
}

TEST(PixelFile, AShortClipIsNamed) {
  const std::vector<Media> media = read({tensor("pixel_values", DType::f32, {4, 2}, counted(8)),
                                         tensor<std::int32_t>("grid", DType::i32, {1, 3}, {1, 2, 2}),
                                         tensor<std::int32_t>("is_video", DType::i32, {1}, {1})});
  EXPECT_EQ(media.at(0).kind, Media::Kind::video);
}

TEST(PixelFile, WhatDoesNotFitIsOneLine) {
  const FileTensor pixels = tensor("pixel_values", DType::f32, {4, 2}, counted(8));
  const auto grid = [](std::vector<std::int64_t> sides) {
    const auto rows = static_cast<std::int64_t>(sides.size() / 3);
    return tensor("grid", DType::i64, {rows, 3}, sides);
  };
  const std::vector<std::pair<std::string, std::vector<FileTensor>>> cases = {
      {"no tensor pixel_values", {grid({1, 2, 2})}},
      {"no tensor grid", {pixels}},
      {"grid: row 0 holds -2", {grid({1, -2, -2}), pixels}},
      {"grid asks for more patches than the 4 rows", {grid({1, 2, 4}), pixels}},
      {"grid asks for more patches than the 4 rows", {grid({1 << 24, 1 << 24, 1 << 24}), pixels}},
      {"pixel_values has 4 rows where grid asks for 2", {grid({1, 1, 2}), pixels}},
      {"grid has no row", {grid({}), tensor("pixel_values", DType::f32, {0, 2}, counted(0))}},
      {"grid is F32 [1, 3]; expected I32 or I64", {tensor<float>("grid", DType::f32, {1, 3}, {1, 2, 2}), pixels}},
      {"expected F32 or BF16", {tensor("pixel_values", DType::f32, {8}, counted(8)), grid({1, 2, 2})}},
      {"is_video is I64 [2]", {grid({1, 2, 2}), tensor<std::int64_t>("is_video", DType::i64, {2}, {0, 1}), pixels}}};
  for (const auto& [expected, tensors] : cases) {
    EXPECT_NE(error_of(tensors).find(expected), std::string::npos) << error_of(tensors);
  }
}

// The program from a checkpoint and files: features and logits equal transformers' in fp32.
TEST(TracePixels, StoresFeaturesAndSeesThemInLogits) {
  const test::VisionCase golden("vision_clips");
  const test::TemporaryDirectory directory;
  std::vector<std::int64_t> sides, is_video;
  for (const test::VisionCase::Media& media : golden.media) {
    sides.insert(sides.end(), {media.t, media.h, media.w});
    is_video.push_back(media.video ? 1 : 0);
  }
  const auto count = static_cast<std::int64_t>(is_video.size());
  test::write_safetensors(
      directory / "pixels",
      {tensor("grid", DType::i64, {count, 3}, sides), tensor("is_video", DType::i64, {count}, is_video),
       tensor("pixel_values", DType::f32, {std::ssize(golden.pixels) / golden.columns, golden.columns},
              golden.pixels)});
  std::string ids;
  for (const std::int32_t id : golden.ints("token_ids")) ids += std::to_string(id) + " ";
  test::write_file(directory / "ids", ids);
  std::string positions;
  for (const std::int32_t position : golden.ints("positions")) {
    if (!positions.empty()) positions += ",";
    positions += std::to_string(position);
  }
  const std::string command = std::string(M3_PROGRAM) + " trace " + golden.directory().string() + " --pixels " +
                              (directory / "pixels").string() + " --backend scalar --numerics fp32 --out " +
                              (directory / "out").string();
  const auto check = [&](const char* name) {
    const TensorFiles trace = TensorFiles::open_file(directory / "out");
    const StoredTensor* stored = trace.find(name);
    ASSERT_NE(stored, nullptr) << name;
    ASSERT_EQ(stored->shape, golden.shape(name)) << name;
    const std::vector<float> ours(reinterpret_cast<const float*>(stored->bytes.data()),
                                  reinterpret_cast<const float*>(stored->bytes.data() + stored->bytes.size()));
    const std::vector<float> expected = golden.floats(name);
    for (std::int64_t row = 0; row < stored->shape[0]; ++row)
      EXPECT_LT(test::row_error(ours.data(), expected.data(), row, stored->shape[1]), 1e-4) << name << " row " << row;
  };
  ASSERT_EQ(std::system((command + " --token-ids " + (directory / "ids").string() + " --tensors logits --positions " +
                         positions)
                            .c_str()),
            0);
  check("features");
  check("logits");
  ASSERT_EQ(std::system(command.c_str()), 0);  // the tower alone
  check("features");
  EXPECT_EQ(TensorFiles::open_file(directory / "out").tensors().size(), 1u);
}

}  // namespace
}  // namespace m3::cli
