#include "src/base/mapped_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "m3/error.h"
#include "tests/support/temporary_directory.h"

namespace m3 {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class MappedFiles : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::filesystem::path path = directory.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::size_t entries() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++count;
    return count;
  }
  test::TemporaryDirectory directory;
};

TEST_F(MappedFiles, MapsAndMoves) {
  MappedFile file(write("a", "hello"));
  EXPECT_EQ(text_of(file), "hello");
  EXPECT_EQ(file.path().filename(), "a");
  MappedFile moved = std::move(file);
  EXPECT_EQ(text_of(moved), "hello");
  MappedFile other(write("b", "there"));
  other = std::move(moved);
  EXPECT_EQ(text_of(other), "hello");
  EXPECT_TRUE(MappedFile(write("empty", "")).bytes().empty());
}

TEST_F(MappedFiles, ReadsWhatIsMappedFromTheFile) {
  const auto path = write("some", "0123456789");
  const MappedFile first(path), second(write("other", "abcdef"));
  std::array<std::byte, 10> got{};
  ASSERT_TRUE(read_mapped(first.bytes().subspan(3, 4), got.data()));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(got.data()), 4), "3456");
  ASSERT_TRUE(read_mapped(second.bytes(), got.data()));
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(got.data()), 6), "abcdef");
  EXPECT_FALSE(read_mapped({first.bytes().data() + 8, 4}, got.data())) << "past the end of its mapping";
  EXPECT_FALSE(read_mapped(got, got.data())) << "memory of another kind";
  const std::byte* gone = nullptr;
  {
    const MappedFile passing(path);
    gone = passing.bytes().data();
  }
  EXPECT_FALSE(read_mapped({gone, 4}, got.data()));
}

TEST_F(MappedFiles, NamesAFileThatBecameShorter) {
  const auto path = write("cut", "0123456789");
  const MappedFile file(path);
  std::filesystem::resize_file(path, 6);
  std::array<std::byte, 10> got{};
  ASSERT_TRUE(read_mapped(file.bytes().first(6), got.data()));
  try {
    read_mapped(file.bytes(), got.data());
    ADD_FAILURE() << "read past the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_EQ(std::string(error.what()), path.string() + " became shorter while it was read");
  }
}

TEST_F(MappedFiles, NamesWhatCannotBeMapped) {
  for (const auto& path : {directory.path() / "absent", directory.path()}) {
    try {
      MappedFile file(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
}

TEST_F(MappedFiles, TextHasALimit) {
  const auto path = write("text", "0123456789");
  EXPECT_EQ(read_text_file(path, 10), "0123456789");
  EXPECT_THROW(read_text_file(path, 9), Error);
}

TEST_F(MappedFiles, AtomicFileAppearsWholeOrNotAtAll) {
  const std::filesystem::path path = directory.path() / "out";
  {
    AtomicFile file(path);
    file.write("half");
  }
  EXPECT_EQ(entries(), 0u);
  {
    AtomicFile file(path);
    file.write("first ");
    const char more[] = {'m', 'o', 'r', 'e'};
    file.write(std::as_bytes(std::span(more)));
    EXPECT_FALSE(std::filesystem::exists(path));
    file.commit();
  }
  EXPECT_EQ(read_text_file(path, 100), "first more");
  EXPECT_EQ(entries(), 1u);
  {
    AtomicFile file(path);
    file.write("abandoned");
  }
  EXPECT_EQ(read_text_file(path, 100), "first more");
  EXPECT_THROW(AtomicFile(directory.path() / "absent" / "out"), Error);
}

}  // namespace
}  // namespace m3
