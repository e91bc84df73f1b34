# Targets `pristine` (what gate 0 needs) and `pristine-tools` (for benches); neither is part of `all`.

# the same options as ours: everything in the cache that shapes llama.cpp's compile lines
set(HWKV_OPTIONS "# written by CMake\n")
get_cmake_property(names CACHE_VARIABLES)
foreach (name IN LISTS names)
    get_property(type CACHE ${name} PROPERTY TYPE)
    if (name MATCHES "^(GGML_|LLAMA_|HWKV_CACHE_DIR$|CMAKE_BUILD_TYPE$|CMAKE_CUDA_ARCHITECTURES$|CMAKE_(C|CXX|CUDA)_(FLAGS.*|COMPILER|COMPILER_LAUNCHER)$)"
            AND NOT type MATCHES "INTERNAL|STATIC")
        string(APPEND HWKV_OPTIONS "set(${name} [==[${${name}}]==] CACHE STRING \"\")\n")
    endif()
endforeach()
set(HWKV_OPTIONS_FILE "${CMAKE_BINARY_DIR}/pristine-options.cmake")
file(CONFIGURE OUTPUT "${HWKV_OPTIONS_FILE}" CONTENT "${HWKV_OPTIONS}" @ONLY)

include(ProcessorCount)
ProcessorCount(HWKV_JOBS)
if (HWKV_JOBS EQUAL 0)
    set(HWKV_JOBS 1)
endif()

set(HWKV_PRISTINE_DIR   "${CMAKE_BINARY_DIR}/pristine" CACHE INTERNAL "")
set(HWKV_PRISTINE_BUILD "${CMAKE_COMMAND}" "-DDIR=${HWKV_PRISTINE_DIR}" "-DGENERATOR=${CMAKE_GENERATOR}"
    "-DOPTIONS=${HWKV_OPTIONS_FILE}" "-DJOBS=${HWKV_JOBS}" CACHE INTERNAL "")
set(HWKV_PRISTINE_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/build.cmake" CACHE INTERNAL "")

add_custom_target(pristine       COMMAND ${HWKV_PRISTINE_BUILD} -DTARGETS=gate0 -P "${HWKV_PRISTINE_SCRIPT}"
    USES_TERMINAL VERBATIM COMMENT "Building the pristine llama.cpp")
add_custom_target(pristine-tools COMMAND ${HWKV_PRISTINE_BUILD} -DTARGETS=llama-server,llama-bench,llama-completion -P "${HWKV_PRISTINE_SCRIPT}"
    USES_TERMINAL VERBATIM COMMENT "Building the pristine tools")

include("${CMAKE_CURRENT_LIST_DIR}/../../../scripts/headwisekv/bench/bench.cmake")
