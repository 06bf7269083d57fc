# Finds the libraries that the build needs. A missing one is named.
include(FetchContent)
find_package(Threads REQUIRED)

# simdjson: the system's, else its pinned source.
find_package(simdjson QUIET)
if(NOT simdjson_FOUND)
  message(STATUS "simdjson is not installed: fetching its source (or install libsimdjson-dev)")
  FetchContent_Declare(simdjson
    # v3.10.1, by its commit, which nobody can move.
    URL https://github.com/simdjson/simdjson/archive/e341c8b43861b43de29c48ab65f292d997096953.tar.gz
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    SYSTEM)
  FetchContent_MakeAvailable(simdjson)
endif()

if(STALLOC_BUILD_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  include(Torch)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 CONFIG REQUIRED)
endif()

if(STALLOC_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(STALLOC_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
