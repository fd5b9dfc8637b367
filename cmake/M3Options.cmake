# Language, warnings, sanitizers, and how a folder becomes a library.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Warnings are errors with the compiler that every change is built with, Debian 12's g++; with another one they stay
# warnings, so that a build goes through. What clang has to say is clang-tidy's part.
set(m3_werror_default OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(m3_werror_default ON)
endif()

option(M3_BUILD_TESTS "Build the tests" ON)
option(M3_BUILD_BENCHMARKS "Build the benchmarks under bench/" OFF)
option(M3_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(M3_GPU_PROGRAMS "Only gpu_test and gpu_bench, which need no package but fmt" OFF)
option(M3_UNITY "Compile several sources as one: half the time for a whole build, more for a small change" OFF)
option(M3_WARNINGS_AS_ERRORS "Stop at the first warning" ${m3_werror_default})
set(M3_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

add_library(m3_options INTERFACE)
target_include_directories(m3_options INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_SOURCE_DIR}/include")
# Options of the C++ compiler: nvcc has its own.
function(m3_cxx_options)
  foreach(option ${ARGN})
    target_compile_options(m3_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()
m3_cxx_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Kernels combine comparisons with & on purpose: it has no branch, so the loop can be vectorised.
  m3_cxx_options(-Wno-bitwise-instead-of-logical -Wno-bitwise-conditional-parentheses)
endif()
if(M3_WARNINGS_AS_ERRORS)
  m3_cxx_options(-Werror)
endif()
# Results must not depend on how the compiler contracts a*b+c: the instruction-set files ask for FMA by name.
m3_cxx_options(-ffp-contract=off)
# A program loads only the libraries that it calls.
target_link_options(m3_options INTERFACE LINKER:--as-needed)
if(M3_SANITIZE)
  m3_cxx_options(-fsanitize=${M3_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(m3_options INTERFACE -fsanitize=${M3_SANITIZE})
  if(M3_SANITIZE MATCHES "undefined")
    # AddressSanitizer sees what these would at the access itself; of kernels_avx512.cpp's 86 s they cost 65 to compile.
    m3_cxx_options(-fno-sanitize=null,object-size,pointer-overflow)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 reports values behind the sanitizers' own branches as maybe uninitialised.
    m3_cxx_options(-Wno-maybe-uninitialized)
  endif()
endif()
if(M3_BUILD_FUZZERS)
  m3_cxx_options(-fsanitize=fuzzer-no-link)
endif()

# m3_unity(TARGET): where M3_UNITY is on, the target's sources are compiled together, up to 6 at a time: most of a file's
# time goes into the templates that it shares with its neighbours. Sources with options of their own stay alone.
function(m3_unity target)
  if(M3_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
endfunction()

# Files whose private names are also those of a neighbour, and src/ops/backends.cpp, of which the emulated CUDA test has
# its own.
set_source_files_properties(
  src/cli/chat_session.cpp src/chat/messages.cpp src/chat/request_fields.cpp src/chat/template/filters_sequence.cpp
  src/chat/template/filters_text.cpp src/chat/template/unicode.cpp
  src/chat/template/value.cpp src/checkpoint/random.cpp src/checkpoint/vision_layout.cpp src/ops/backends.cpp src/server/completion_call.cpp
  src/tokenizer/known_patterns.cpp src/vision/fetch.cpp
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# m3_library(NAME DEPENDS a b ...): every .cpp below src/NAME, except main.cpp, as the static library m3_NAME.
function(m3_library name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "/ops/cuda/") # M3Cuda.cmake
  list(TRANSFORM arg_DEPENDS PREPEND m3_)
  if(sources)
    add_library(m3_${name} STATIC ${sources})
    target_link_libraries(m3_${name} PUBLIC m3_options m3_dependencies ${arg_DEPENDS})
    m3_unity(m3_${name})
  else() # headers only
    add_library(m3_${name} INTERFACE)
    target_link_libraries(m3_${name} INTERFACE m3_options m3_dependencies ${arg_DEPENDS})
  endif()
endfunction()

# Kernels of one instruction set live in files named *_avx2.cpp and *_avx512.cpp, chosen at run time.
file(GLOB_RECURSE m3_avx2_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/ops/cpu/*_avx2.cpp"
     "${CMAKE_SOURCE_DIR}/src/vision/*_avx2.cpp")
file(GLOB_RECURSE m3_avx512_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/ops/cpu/*_avx512.cpp")
set_source_files_properties(${m3_avx2_sources} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
set_source_files_properties(${m3_avx512_sources} PROPERTIES COMPILE_OPTIONS
  "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16;-mavx512vbmi")
