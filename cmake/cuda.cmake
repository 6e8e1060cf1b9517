# The CUDA backend, built when OSCAR_CUDA is ON: kernels of the library and of the engine, and `--device cuda`. cmake/cuda_only
# builds the library's kernels without the rest.
# CMake 3.25 knows no C++20 for CUDA with nvcc 13: neither CUDA_STANDARD nor the feature may be set; the option is passed.
option(OSCAR_CUDA "Build the CUDA backend (needs nvcc)" OFF)
option(OSCAR_CUDA_FORCE_PORTABLE "Build the CUDA kernels without what only sm_90 has, as for sm_80" OFF)
if(OSCAR_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "90a-real")
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()

# The kernels of `folder` (*.cu) as the library `name`. It links nothing of ours: features that host libraries ask for would become
# another dialect for nvcc. Tests and benches of the kernels are built by cmake/cuda_only.
function(oscar_cuda_library name folder)
  unset(CMAKE_CXX_STANDARD)  # CUDA targets would inherit it as the unknown dialect CUDA20
  unset(CMAKE_CXX_STANDARD_REQUIRED)
  unset(CMAKE_CXX_EXTENSIONS)  # OFF would add the option for an older dialect
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cu)
  list(FILTER sources EXCLUDE REGEX "_cuda_(test|bench)\\.cu$")
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -std=c++20 --expt-relaxed-constexpr -lineinfo -Xptxas=--warn-on-spills,-Werror)
  target_link_libraries(${name} PUBLIC CUDA::cudart_static)
endfunction()

# Sources of the CUDA backend under `folder`: *.cu but tests and benches, as the library oscar_cuda; *_cuda_test.cu as the test
# program oscar_cuda_test (label cuda; its tests skip themselves without a device); *_cuda_bench.cu as oscar_cuda_bench.
function(oscar_cuda_folder folder)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  unset(CMAKE_CXX_STANDARD)  # CUDA targets would inherit it as the unknown dialect CUDA20
  unset(CMAKE_CXX_STANDARD_REQUIRED)
  unset(CMAKE_CXX_EXTENSIONS)  # OFF would add the option for an older dialect
  set(dir ${PROJECT_SOURCE_DIR}/src/${folder})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cu)
  set(tests ${sources})
  set(benches ${sources})
  list(FILTER tests INCLUDE REGEX "_cuda_test\\.cu$")
  list(FILTER benches INCLUDE REGEX "_cuda_bench\\.cu$")
  list(FILTER sources EXCLUDE REGEX "_cuda_(test|bench)\\.cu$")
  add_library(oscar_cuda STATIC ${sources})
  target_include_directories(oscar_cuda PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
  target_compile_options(oscar_cuda PUBLIC
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr -lineinfo>)
  if(OSCAR_CUDA_FORCE_PORTABLE)
    target_compile_definitions(oscar_cuda PUBLIC OSCAR_CUDA_FORCE_PORTABLE)
  endif()
  # A kernel that spills registers fails the build.
  target_compile_options(oscar_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=--warn-on-spills,-Werror>)
  target_link_libraries(oscar_cuda PUBLIC ${ARG_DEPS} CUDA::cudart_static)
  if(OSCAR_BUILD_TESTS)
    add_executable(oscar_cuda_test ${tests})
    target_link_libraries(oscar_cuda_test oscar_cuda oscar_testing GTest::gtest GTest::gtest_main)
    add_test(NAME oscar_cuda_test COMMAND oscar_cuda_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(oscar_cuda_test PROPERTIES LABELS cuda SKIP_REGULAR_EXPRESSION "no CUDA device")
  endif()
  add_executable(oscar_cuda_bench ${benches})
  target_link_libraries(oscar_cuda_bench oscar_cuda oscar_testing)
endfunction()
