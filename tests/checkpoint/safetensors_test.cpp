#include "src/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "src/base/error.h"
#include "src/checkpoint/safetensors_writer.h"
#include "tests/support/seeded_checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace m3 {
namespace {

using test::TemporaryDirectory;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 'x');
}

std::string error_of(const std::string& bytes) {
  try {
    parse_safetensors(std::as_bytes(std::span(bytes)), "some.safetensors");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct BadFile {
  const char* what;
  std::string bytes;
  const char* message;
};

class BadSafetensors : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensors, IsRefusedByName) {
  const std::string error = error_of(GetParam().bytes);
  EXPECT_THAT(error, HasSubstr("some.safetensors"));
  EXPECT_THAT(error, HasSubstr(GetParam().message));
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Headers, BadSafetensors,
    ::testing::Values(
        BadFile{"empty", "", "too few"}, BadFile{"seven bytes", std::string(7, '\0'), "truncated"},
        BadFile{"header past the end", file_of("{}", 0).substr(0, 9), "leaves the file"},
        BadFile{"huge header", std::string(8, '\xff') + "{}", "over the limit"},
        BadFile{"no json", file_of("nonsense", 0), "not valid JSON"},
        BadFile{"a list", file_of("[]", 0), "expected a JSON object"},
        BadFile{"deep", file_of(R"({"a":)" + std::string(5000, '[') + std::string(5000, ']') + "}", 0),
                "deeper than 64"},
        BadFile{"name twice",
                file_of(R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"a":)" + entry("U8", "[1]", "[1,2]") + "}", 2),
                "given twice"},
        BadFile{"entry is a number", file_of(R"({"a":3})", 0), "tensor a: its header entry"},
        BadFile{"no offsets", file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 1), "missing"},
        BadFile{"unknown dtype", file_of(R"({"a":)" + entry("F4", "[2]", "[0,1]") + "}", 1), "dtype \"F4\""},
        BadFile{"negative size", file_of(R"({"a":)" + entry("U8", "[-1]", "[0,1]") + "}", 1), "size -1"},
        BadFile{"float size", file_of(R"({"a":)" + entry("U8", "[1.5]", "[0,1]") + "}", 1), "size 1.5"},
        BadFile{"size over 63 bits", file_of(R"({"a":)" + entry("U8", "[18446744073709551615]", "[0,1]") + "}", 1),
                "size 18446744073709551615"},
        BadFile{"product overflows", file_of(R"({"a":)" + entry("F32", "[4294967296,4294967296]", "[0,4]") + "}", 4),
                "overflows"},
        BadFile{"product overflows to the right size",
                file_of(R"({"a":)" + entry("U8", "[4294967296,4294967296,1]", "[0,0]") + "}", 0), "overflows"},
        BadFile{"too many sizes", file_of(R"({"a":)" + entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1),
                "at most 8"},
        BadFile{"offsets reversed", file_of(R"({"a":)" + entry("U8", "[1]", "[1,0]") + "}", 1), "ascending"},
        BadFile{"offsets negative", file_of(R"({"a":)" + entry("U8", "[1]", "[-1,0]") + "}", 1), "ascending"},
        BadFile{"three offsets", file_of(R"({"a":)" + entry("U8", "[1]", "[0,1,2]") + "}", 1), "not a pair"},
        BadFile{"past the end", file_of(R"({"a":)" + entry("F32", "[4]", "[0,16]") + "}", 15),
                "tensor a: its data ends at byte 16 of 15"},
        BadFile{"size and offsets differ", file_of(R"({"a":)" + entry("BF16", "[4]", "[0,16]") + "}", 16),
                "BF16 [4] takes 8 bytes, its offsets give 16"},
        BadFile{"overlap",
                file_of(R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"b":)" + entry("U8", "[4]", "[3,7]") + "}", 7),
                "tensors a and b overlap"},
        BadFile{"hole",
                file_of(R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"b":)" + entry("U8", "[4]", "[5,9]") + "}", 9),
                "1 bytes before tensor b"},
        BadFile{"bytes left over", file_of(R"({"a":)" + entry("U8", "[4]", "[0,4]") + "}", 6), "2 bytes after"},
        BadFile{"bytes without tensors", file_of("{}", 6), "6 bytes after the header"},
        BadFile{"control characters", file_of(R"({"a\nb":3})", 0), "a\\x0ab"}),
    [](const auto& test_case) {
      std::string name = test_case.param.what;
      for (char& c : name) c = c == ' ' ? '_' : c;
      return name;
    });

TEST(Safetensors, ReadsEveryKindOfTensor) {
  const std::string bytes =
      file_of(R"({"__metadata__":{"a":"b"},"s":)" + entry("F32", "[]", "[0,4]") + R"(,"e":)" +
                  entry("F8_E8M0", "[2,2]", "[4,8]") + R"(,"none":)" + entry("BF16", "[0,7]", "[8,8]") + R"(,"m":)" +
                  entry("I64", "[1]", "[8,16]") + "}",
              16);
  const auto tensors = parse_safetensors(std::as_bytes(std::span(bytes)), "x");
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "s");
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_EQ(tensors[0].elements(), 1);
  EXPECT_EQ(tensors[1].dtype, DType::u8);
  EXPECT_EQ(describe(tensors[1]), "U8 [2, 2]");
  EXPECT_EQ(tensors[2].elements(), 0);
  EXPECT_EQ(tensors[3].dtype, DType::i64);
}

TEST(Safetensors, EmptyFileOfNoTensorsIsFine) {
  const std::string bytes = file_of("{}", 0);
  EXPECT_TRUE(parse_safetensors(std::as_bytes(std::span(bytes)), "x").empty());
}

test::FileTensor tensor(const std::string& name, std::size_t bytes, char fill) {
  test::FileTensor result;
  result.name = name;
  result.dtype = DType::u8;
  result.shape = {static_cast<std::int64_t>(bytes)};
  result.bytes.assign(bytes, std::byte(fill));
  return result;
}

std::string open_error(const TemporaryDirectory& directory) {
  try {
    TensorFiles::open(directory.path());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TensorFiles, WriterAndReaderAgree) {
  const TemporaryDirectory directory;
  SafetensorsWriter writer(directory / "model.safetensors");
  writer.metadata("format", "pt");
  const std::vector<float> values = {1.5f, -2.0f, 3.25f};
  const std::vector<std::int64_t> shape = {3};
  const std::vector<std::int64_t> empty = {0};
  writer.declare("a \"quoted\" name", DType::f32, shape);
  writer.declare("nothing", DType::i32, empty);
  writer.declare("b", DType::f32, shape);
  EXPECT_FALSE(std::filesystem::exists(directory / "model.safetensors"));
  const auto bytes = std::as_bytes(std::span(values));
  writer.write("a \"quoted\" name", bytes.first(4));
  writer.write("a \"quoted\" name", bytes.subspan(4));
  writer.write("b", bytes);
  writer.commit();
  const auto files = TensorFiles::open(directory.path());
  ASSERT_EQ(files.tensors().size(), 3u);
  const StoredTensor* a = files.find("a \"quoted\" name");
  ASSERT_NE(a, nullptr);
  EXPECT_TRUE(std::equal(a->bytes.begin(), a->bytes.end(), bytes.begin(), bytes.end()));
  EXPECT_EQ(files.find("c"), nullptr);
  EXPECT_NE(files.find("nothing"), nullptr);
}

TEST(TensorFiles, WriterLeavesNothingWhenAbandoned) {
  const TemporaryDirectory directory;
  test::write_file(directory / "out.safetensors", "before");
  {
    SafetensorsWriter writer(directory / "out.safetensors");
    const std::vector<std::int64_t> shape = {3};
    writer.declare("a", DType::u8, shape);
    EXPECT_THROW(writer.commit(), Error);
    EXPECT_THROW(writer.write("b", {}), Error);
  }
  EXPECT_EQ(test::read_file(directory / "out.safetensors"), "before");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(TensorFiles, ShardsWithAnIndex) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b'), tensor("c", 1, 'c')}, 2);
  const auto files = TensorFiles::open(directory.path());
  EXPECT_EQ(files.file_count(), 2u);
  ASSERT_EQ(files.tensors().size(), 3u);
  EXPECT_EQ(files.find("b")->bytes[4], std::byte('b'));
}

TEST(TensorFiles, AbsentShardIsNamed) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b')}, 2);
  std::filesystem::remove(directory / "model-00002-of-00002.safetensors");
  EXPECT_THAT(open_error(directory), HasSubstr("model-00002-of-00002.safetensors: expected a file"));
}

TEST(TensorFiles, ShardLacksATensorOfTheIndex) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b')}, 2);
  test::write_safetensors(directory / "model-00002-of-00002.safetensors", {tensor("other", 5, 'b')});
  const std::string error = open_error(directory);
  EXPECT_THAT(error, HasSubstr("2 problems"));
  EXPECT_THAT(error, HasSubstr("b: expected it in model-00002-of-00002.safetensors"));
  EXPECT_THAT(error, HasSubstr("other: expected an entry in model.safetensors.index.json"));
}

TEST(TensorFiles, TensorInTwoShards) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b')}, 2);
  test::write_safetensors(directory / "model-00002-of-00002.safetensors", {tensor("a", 3, 'a'), tensor("b", 5, 'b')});
  EXPECT_THAT(open_error(directory), HasSubstr("a: expected one shard that holds it, found a second copy"));
}

TEST(TensorFiles, TensorInAnotherShardThanTheIndexSays) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b')}, 2);
  test::write_safetensors(directory / "model-00001-of-00002.safetensors", {tensor("b", 5, 'b')});
  test::write_safetensors(directory / "model-00002-of-00002.safetensors", {tensor("a", 3, 'a')});
  EXPECT_THAT(open_error(directory), HasSubstr("a: expected it in model-00001-of-00002.safetensors"));
}

TEST(TensorFiles, ShardNamesStayInsideTheDirectory) {
  const TemporaryDirectory directory;
  for (const char* name : {"../secret.safetensors", "/etc/passwd", "..", "a\\\\b", ""}) {
    test::write_file(directory / "model.safetensors.index.json",
                     std::string(R"({"weight_map":{"a":")") + name + R"("}})");
    EXPECT_THAT(open_error(directory), HasSubstr("accepted: the name of a file beside the index")) << name;
  }
}

TEST(TensorFiles, BrokenIndexes) {
  const TemporaryDirectory directory;
  test::write_file(directory / "model.safetensors.index.json", "{}");
  EXPECT_THAT(open_error(directory), HasSubstr("weight_map is missing"));
  test::write_file(directory / "model.safetensors.index.json", R"({"weight_map":[]})");
  EXPECT_THAT(open_error(directory), HasSubstr("weight_map is a list of 0"));
  test::write_file(directory / "model.safetensors.index.json", R"({"weight_map":{"a":4}})");
  EXPECT_THAT(open_error(directory), HasSubstr("weight_map gives 4 for tensor a"));
}

TEST(TensorFiles, SingleFileAndForeignIndexTogether) {
  const TemporaryDirectory directory;
  test::write_checkpoint(directory.path(), "{}", {tensor("a", 3, 'a'), tensor("b", 5, 'b')}, 2);
  test::write_safetensors(directory / "model.safetensors", {tensor("a", 3, 'a')});
  EXPECT_THAT(open_error(directory), HasSubstr("both model.safetensors and an index"));
}

TEST(TensorFiles, OtherFormatsAreNamed) {
  const TemporaryDirectory directory;
  EXPECT_THAT(open_error(directory), HasSubstr("no model.safetensors and no model.safetensors.index.json"));
  test::write_file(directory / "pytorch_model.bin", "x");
  EXPECT_THAT(open_error(directory), HasSubstr("pytorch_model.bin is a pickled PyTorch file"));
  test::write_file(directory / "M3-Q4.gguf", "x");
  EXPECT_THAT(open_error(directory), HasSubstr("M3-Q4.gguf is a GGUF file"));
  test::write_file(directory / "model-00001-of-00002.safetensors", "x");
  EXPECT_THAT(open_error(directory), HasSubstr("shards need their index file"));
}

}  // namespace
}  // namespace m3
