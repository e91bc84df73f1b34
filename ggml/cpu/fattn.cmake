# The CPU flash attention of our own. The wider x86 kernels are chosen at run time, so their files alone get the flags.

set(HWKV_FATTN_DIR "${CMAKE_CURRENT_LIST_DIR}")
set(HWKV_FATTN_SOURCES hwkv-fattn.c hwkv-fattn-c.c hwkv-fattn-avx2.c hwkv-fattn-avx512.c hwkv-fattn-neon.c)
list(TRANSFORM HWKV_FATTN_SOURCES PREPEND "${HWKV_FATTN_DIR}/")

# Adds the sources, and those in ARGN, to a target of any directory.
function(hwkv_fattn_add_to target)
    target_sources(${target} PRIVATE ${HWKV_FATTN_SOURCES} ${ARGN})
    target_include_directories(${target} PRIVATE "${HWKV_FATTN_DIR}")
    get_target_property(dir ${target} SOURCE_DIR)
    set_property(SOURCE ${HWKV_FATTN_SOURCES} DIRECTORY "${dir}" APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=fast)
    if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        set_property(SOURCE "${HWKV_FATTN_DIR}/hwkv-fattn-avx2.c" DIRECTORY "${dir}" APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mfma -mf16c)
        set_property(SOURCE "${HWKV_FATTN_DIR}/hwkv-fattn-avx512.c" DIRECTORY "${dir}" APPEND PROPERTY
            COMPILE_OPTIONS -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
    endif()
endfunction()

# ggml-cpu, or one library for each CPU with GGML_CPU_ALL_VARIANTS
function(hwkv_fattn_add_to_ggml dir)
    get_property(targets DIRECTORY "${dir}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach (target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if (target MATCHES "^ggml-cpu" AND NOT target MATCHES "-feats$" AND NOT type STREQUAL "UTILITY")
            hwkv_fattn_add_to(${target} "${HWKV_FATTN_DIR}/hwkv-fattn-ggml.c" "${HWKV_FATTN_DIR}/hwkv-fuse.c" "${HWKV_FATTN_DIR}/hwkv-mulmat.c")
        endif()
    endforeach()
endfunction()
