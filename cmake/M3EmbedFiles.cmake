# cmake -DOUTPUT=x.cpp -DFOLDER=... -P M3EmbedFiles.cmake: the files of a folder as byte arrays.
# Defines m3::server::embedded_page_files() (src/server/page.h).
file(GLOB files RELATIVE "${FOLDER}" "${FOLDER}/*.html" "${FOLDER}/*.css" "${FOLDER}/*.js" "${FOLDER}/*.svg")
list(SORT files)
set(arrays "")
set(entries "")
set(number 0)
foreach(name IN LISTS files)
  file(READ "${FOLDER}/${name}" bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char file_${number}[] = {${bytes}};\n")
  string(APPEND entries "    PageFile{\"${name}\", file_${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/M3EmbedFiles.cmake of src/server/page.
#include <array>

#include \"src/server/page.h\"

namespace m3::server {
namespace {

${arrays}
constexpr std::array files = {
${entries}};

}  // namespace

std::span<const PageFile> embedded_page_files() { return files; }

}  // namespace m3::server
")
