# Language, warnings, sanitizers, and how a folder becomes a library.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(M3_BUILD_TESTS "Build the tests" ON)
option(M3_BUILD_BENCHMARKS "Build the benchmarks under bench/" OFF)
option(M3_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
set(M3_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

add_library(m3_options INTERFACE)
target_include_directories(m3_options INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/include")
target_compile_options(m3_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                                            -Wimplicit-fallthrough -Werror)
# Results must not depend on how the compiler contracts a*b+c: the instruction-set files ask for FMA by name.
target_compile_options(m3_options INTERFACE -ffp-contract=off)
if(M3_SANITIZE)
  target_compile_options(m3_options INTERFACE -fsanitize=${M3_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(m3_options INTERFACE -fsanitize=${M3_SANITIZE})
endif()
if(M3_BUILD_FUZZERS)
  target_compile_options(m3_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(m3_options INTERFACE -fsanitize=address,undefined)
endif()

# m3_library(NAME DEPENDS a b ...): every .cpp below src/NAME, except main.cpp, as the static library m3_NAME.
function(m3_library name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  add_library(m3_${name} STATIC ${sources})
  target_link_libraries(m3_${name} PUBLIC m3_options m3_dependencies)
  foreach(dependency ${arg_DEPENDS})
    target_link_libraries(m3_${name} PUBLIC m3_${dependency})
  endforeach()
endfunction()

# Kernels of one instruction set live in files named *_avx2.cpp and *_avx512.cpp, chosen at run time.
file(GLOB_RECURSE m3_avx2_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/ops/cpu/*_avx2.cpp")
file(GLOB_RECURSE m3_avx512_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/ops/cpu/*_avx512.cpp")
set_source_files_properties(${m3_avx2_sources} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
set_source_files_properties(${m3_avx512_sources} PROPERTIES COMPILE_OPTIONS
  "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16;-mavx512vbmi")
