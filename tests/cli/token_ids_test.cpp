// Id lists: text and .npy, good and bad.
#include <gtest/gtest.h>

#include "m3/error.h"
#include "src/cli/common.h"

namespace m3::cli {
namespace {

using Ids = std::vector<std::int32_t>;

template <typename T>
std::string npy(const std::string& type, const std::string& shape, const std::vector<T>& values) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((header.size() + 10 + 64) / 64 * 64 - 11, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return bytes;
}

std::string error_of(const std::string& bytes) {
  try {
    parse_token_ids(bytes, "ids");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenIds, Text) {
  EXPECT_EQ(parse_token_ids("1 2\n\t3\r\n", "ids"), (Ids{1, 2, 3}));
  EXPECT_EQ(parse_token_ids("", "ids"), Ids{});
  EXPECT_EQ(parse_token_ids("2147483647", "ids"), Ids{2147483647});
  EXPECT_NE(error_of("1 2147483648").find("\"2147483648\" at byte 2"), std::string::npos);
  EXPECT_NE(error_of("1 -2").find("\"-2\" at byte 2"), std::string::npos);
  EXPECT_NE(error_of("1,2").find("\"1,2\" at byte 0"), std::string::npos);
  EXPECT_NE(error_of("\x01").find("\\x01"), std::string::npos);
}

TEST(TokenIds, NpyOfEveryIntegerWidth) {
  EXPECT_EQ(parse_token_ids(npy<std::int32_t>("<i4", "(3,)", {1, 2, 3}), "ids"), (Ids{1, 2, 3}));
  EXPECT_EQ(parse_token_ids(npy<std::int64_t>("<i8", "(2,)", {7, 200063}), "ids"), (Ids{7, 200063}));
  EXPECT_EQ(parse_token_ids(npy<std::uint32_t>("<u4", "(1,)", {9}), "ids"), (Ids{9}));
  EXPECT_EQ(parse_token_ids(npy<std::uint64_t>("<u8", "(1,)", {9}), "ids"), (Ids{9}));
  EXPECT_EQ(parse_token_ids(npy<std::uint16_t>("<u2", "(2,)", {65535, 0}), "ids"), (Ids{65535, 0}));
  EXPECT_EQ(parse_token_ids(npy<std::int16_t>("<i2", "(1,)", {5}), "ids"), (Ids{5}));
}

TEST(TokenIds, BadNpyIsOneLine) {
  EXPECT_NE(error_of(npy<std::int32_t>("<i4", "(4,)", {1, 2, 3}))
                .find("4 elements of 4 bytes are announced, 12 bytes follow"),
            std::string::npos);
  EXPECT_NE(error_of(npy<std::int32_t>("<i4", "(1, 3)", {1, 2, 3})).find("one-dimensional"), std::string::npos);
  EXPECT_NE(error_of(npy<float>("<f4", "(1,)", {1.0f})).find("elements of type <f4"), std::string::npos);
  EXPECT_NE(error_of(npy<std::int64_t>("<i8", "(1,)", {-5})).find("id -5 at index 0"), std::string::npos);
  EXPECT_NE(error_of(npy<std::uint64_t>("<u8", "(1,)", {std::uint64_t{1} << 40})).find("is not a token id"),
            std::string::npos);
  const std::string good = npy<std::int32_t>("<i4", "(1,)", {1});
  for (std::size_t length = 6; length < good.size(); ++length)
    EXPECT_NE(error_of(good.substr(0, length)), "accepted") << length;
}

}  // namespace
}  // namespace m3::cli
