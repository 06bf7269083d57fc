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
  # torch comes from the environment that builds: its C++ interface has to match, to the version,
  # the torch that will run.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c [[
import torch
from torch.utils import cpp_extension
print(torch.__version__.split("+")[0])
print(";".join(cpp_extension.include_paths()))
print(";".join(cpp_extension.library_paths()))
from importlib.util import find_spec
nvidia = find_spec("nvidia")
print(";".join(nvidia.submodule_search_locations) if nvidia else "")
print(torch.version.cuda or "OFF")
]]
    OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result)
  if(NOT torch_result EQUAL 0)
    string(STRIP "${torch_error}" torch_error)
    string(REGEX REPLACE ".*\n" "" torch_error "${torch_error}")  # its last line says what is wrong
    message(FATAL_ERROR
      "stalloc is built against the torch of the environment that builds it, and "
      "${Python_EXECUTABLE} cannot import torch (${torch_error}). Install torch there first, then "
      "build with `pip install --no-build-isolation .`: without that option pip builds where "
      "nothing of the environment is seen.")
  endif()
  string(REPLACE ";" "|" torch_facts "${torch_facts}")
  string(REPLACE "\n" ";" torch_facts "${torch_facts}")
  list(GET torch_facts 0 STALLOC_TORCH_VERSION)
  list(GET torch_facts 1 torch_includes)
  list(GET torch_facts 2 torch_libdirs)
  string(REPLACE "|" ";" torch_includes "${torch_includes}")
  string(REPLACE "|" ";" torch_libdirs "${torch_libdirs}")
  list(GET torch_facts 3 nvidia_wheels)
  list(GET torch_facts 4 STALLOC_TORCH_CUDA)
  string(REPLACE "|" ";" nvidia_wheels "${nvidia_wheels}")
  message(STATUS "Building against torch ${STALLOC_TORCH_VERSION}, CUDA ${STALLOC_TORCH_CUDA}")

  # CUDA's headers, from a toolkit or from wheels (nvidia-cuda-runtime and nvidia-cuda-crt, of which
  # torch brings the first alone). No part of CUDA is linked.
  string(REGEX MATCH "^[0-9]+" cuda_major "${STALLOC_TORCH_CUDA}")
  list(TRANSFORM nvidia_wheels APPEND "/cu${cuda_major}/include" OUTPUT_VARIABLE wheel_includes)
  list(TRANSFORM nvidia_wheels APPEND "/cuda_runtime/include")
  function(stalloc_has_cuda_headers result folder)
    foreach(header cuda_runtime_api.h crt/host_config.h)
      if(NOT EXISTS "${folder}/${header}")
        set(${result} FALSE PARENT_SCOPE)
      endif()
    endforeach()
  endfunction()
  find_path(STALLOC_CUDA_INCLUDE cuda_runtime_api.h VALIDATOR stalloc_has_cuda_headers
            HINTS ${wheel_includes} ${nvidia_wheels} ENV CUDA_HOME ENV CUDA_PATH
            PATHS /usr/local/cuda/include PATH_SUFFIXES include)
  if(STALLOC_TORCH_CUDA AND NOT STALLOC_CUDA_INCLUDE)
    message(WARNING "this torch is a CUDA build, and CUDA's headers (cuda_runtime_api.h with "
                    "crt/host_config.h) are not to be found: stalloc is built without native mode, "
                    "and will not serve CUDA tensors but in compat mode. Install a CUDA toolkit or "
                    "the wheel nvidia-cuda-crt in CUDA's version, or set CUDA_HOME.")
  endif()

  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 CONFIG REQUIRED)

  # Not find_package(Torch): it drags in every library torch was built with. c10 holds the
  # allocators, torch_cpu the autograd engine; `import torch` has loaded both before ours.
  add_library(stalloc_libtorch INTERFACE)
  target_include_directories(stalloc_libtorch SYSTEM INTERFACE ${torch_includes})
  target_link_directories(stalloc_libtorch INTERFACE ${torch_libdirs})
  target_link_libraries(stalloc_libtorch INTERFACE c10 torch_cpu)
endif()

if(STALLOC_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(STALLOC_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
