# Finds the versions of torch that adapters are built for, and builds those.
#
# The adapters need the headers of a version. They link stubs that have the names of torch's
# libraries: `import torch` has loaded the real ones before the adapters are loaded. So one build can
# serve versions that are not installed, and one adapter serves CPU and CUDA builds of a version.
#
# STALLOC_TORCHES lists folders with the headers of torch's wheels (scripts/torch_headers.sh). If it
# is empty, the torch of the environment that builds is the only one.
set(STALLOC_TORCHES "" CACHE STRING "Folders of unpacked wheels of torch to build adapters for")

if(STALLOC_TORCHES)
  set(torch_includes ${STALLOC_TORCHES})
  list(TRANSFORM torch_includes APPEND "/torch/include")
  set(cuda_hints "")
  set(torch_cuda "")
else()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c [[
import torch
from importlib.util import find_spec
from pathlib import Path
print(Path(torch.__file__).parent / "include")
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
  list(GET torch_facts 0 torch_includes)
  list(GET torch_facts 1 nvidia_wheels)
  list(GET torch_facts 2 torch_cuda)
  string(REPLACE "|" ";" nvidia_wheels "${nvidia_wheels}")
  string(REGEX MATCH "^[0-9]+" cuda_major "${torch_cuda}")
  set(cuda_hints ${nvidia_wheels})
  list(TRANSFORM cuda_hints APPEND "/cu${cuda_major}/include")
  list(APPEND cuda_hints ${nvidia_wheels})
endif()

# CUDA's headers, from a toolkit or from wheels (nvidia-cuda-runtime and nvidia-cuda-crt, of which
# torch brings the first alone). No part of CUDA is linked.
function(stalloc_has_cuda_headers result folder)
  foreach(header cuda_runtime_api.h crt/host_config.h)
    if(NOT EXISTS "${folder}/${header}")
      set(${result} FALSE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()
find_path(STALLOC_CUDA_INCLUDE cuda_runtime_api.h VALIDATOR stalloc_has_cuda_headers
          HINTS ${cuda_hints} ENV CUDA_HOME ENV CUDA_PATH
          PATHS /usr/local/cuda/include PATH_SUFFIXES include cuda_runtime/include)
if(torch_cuda AND NOT STALLOC_CUDA_INCLUDE)
  message(WARNING "this torch is a CUDA build, and CUDA's headers (cuda_runtime_api.h with "
                  "crt/host_config.h) are not to be found: stalloc is built without native mode, "
                  "and will not serve CUDA tensors but in compat mode. Install a CUDA toolkit or "
                  "the wheel nvidia-cuda-crt in CUDA's version, or set CUDA_HOME.")
endif()

# The headers that decide how torch's objects lie in memory and in which order functions are called.
# A module built against one patch release serves another whose headers are the same.
set(STALLOC_TORCH_INTERFACE
    ATen/core/CachingHostAllocator.h c10/core/Allocator.h c10/core/CachingDeviceAllocator.h
    c10/core/CPUAllocator.h c10/core/Device.h c10/core/Stream.h
    c10/core/impl/DeviceGuardImplInterface.h c10/core/impl/GPUTrace.h c10/core/impl/PyInterpreter.h c10/core/impl/VirtualGuardImpl.h
    c10/cuda/CUDACachingAllocator.h c10/cuda/CUDAGuard.h c10/cuda/CUDAStream.h
    c10/util/ApproximateClock.h c10/util/Exception.h c10/util/UniqueVoidPtr.h
    c10/util/intrusive_ptr.h torch/csrc/autograd/function.h torch/csrc/autograd/graph_task.h
    torch/csrc/profiler/combined_traceback.h)

foreach(name c10 torch_cpu c10_cuda)
  add_library(stalloc_stub_${name} SHARED "${CMAKE_CURRENT_LIST_DIR}/stub.cpp")
  set_target_properties(stalloc_stub_${name} PROPERTIES
                        OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/stubs")
endforeach()

# Adds a module, its name followed by the torch it serves: _torch_2_14. `libraries` are torch's.
# Sets stalloc_adapter to its target.
function(stalloc_add_adapter name include libraries)
  file(STRINGS "${include}/torch/headeronly/version.h" lines REGEX "define TORCH_VERSION_[MP]")
  string(REGEX MATCHALL " [0-9]+" numbers "${lines}")
  list(TRANSFORM numbers STRIP)
  list(GET numbers 0 major)
  list(GET numbers 1 minor)
  list(GET numbers 2 patch)
  set(module ${name}_${major}_${minor})
  set(interface "")
  foreach(header ${STALLOC_TORCH_INTERFACE})
    if(NOT EXISTS "${include}/${header}")  # torch for ROCm has none of CUDA
      continue()
    endif()
    file(SHA256 "${include}/${header}" digest)
    list(APPEND interface "${header}:${digest}")
  endforeach()
  list(JOIN interface " " interface)
  pybind11_add_module(${module} MODULE ${ARGN})
  list(TRANSFORM libraries PREPEND stalloc_stub_)
  target_link_libraries(${module} PRIVATE stalloc_core stalloc_options ${libraries})
  target_link_options(${module} PRIVATE LINKER:--no-as-needed)
  target_include_directories(${module} SYSTEM PRIVATE
                             ${include} ${include}/torch/csrc/api/include)
  target_compile_definitions(${module} PRIVATE
                             STALLOC_MODULE=${module}
                             STALLOC_TORCH_VERSION="${major}.${minor}.${patch}"
                             STALLOC_TORCH_INTERFACE="${interface}")
  # As one: torch's headers cost far more to compile than what is in the sources. No file of the
  # build refers to the stubs' folder, where torch's libraries have no content.
  set_target_properties(${module} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0
                                  BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS ${module} LIBRARY DESTINATION stalloc COMPONENT stalloc)
  set(stalloc_adapter ${module} PARENT_SCOPE)
endfunction()
