# Shared by our build and the pristine one, so that both compile llama.cpp with the same options.

# PIN as variables: HWKV_PIN_package, HWKV_PIN_version, ...
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/PIN" HWKV_PIN_LINES)
foreach (line IN LISTS HWKV_PIN_LINES)
    if (line MATCHES "^([a-z0-9_]+) +(.+)$")
        set(HWKV_PIN_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
    endif()
endforeach()

set(HWKV_UPSTREAM_PY "${CMAKE_CURRENT_LIST_DIR}/upstream.py")

# Runs upstream.py; its progress is shown. Sets HWKV_PATCHES_HASH, or HWKV_ERROR to the one sentence of a failure: the
# caller's CMakeLists.txt ends with it, because from here CMake would print a call stack.
function(hwkv_run_upstream)
    if (HWKV_CACHE_DIR)
        list(APPEND ARGN --cache "${HWKV_CACHE_DIR}")
    endif()
    execute_process(COMMAND "${Python3_EXECUTABLE}" "${HWKV_UPSTREAM_PY}" --cmake ${ARGN}
        OUTPUT_VARIABLE out RESULT_VARIABLE res OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(HWKV_ERROR "" PARENT_SCOPE)
    if (out MATCHES "(^|\n)error (.*)$")
        set(HWKV_ERROR "${CMAKE_MATCH_2}" PARENT_SCOPE)
    elseif (NOT res EQUAL 0)
        set(HWKV_ERROR "llama.cpp could not be unpacked (${HWKV_UPSTREAM_PY} ended with ${res})" PARENT_SCOPE)
    elseif (out MATCHES "patches_hash ([0-9a-f]+)")
        set(HWKV_PATCHES_HASH "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
endfunction()

# Adds the llama.cpp in `dir`. A function, so that what is set here stays here. Nothing is built unless asked for.
function(hwkv_add_upstream dir)
    # fixed by the pin: commits of ours must not rebuild anything
    set(LLAMA_BUILD_NUMBER 0)
    set(LLAMA_BUILD_COMMIT "${HWKV_PIN_llama_cpp}")
    set(GIT_EXECUTABLE true)
    set(GIT_EXE        true)

    set(BUILD_SHARED_LIBS     ON)
    set(LLAMA_BUILD_COMMON    ON)
    set(LLAMA_BUILD_TOOLS     ON)
    set(LLAMA_BUILD_SERVER    ON)
    set(LLAMA_BUILD_TESTS     OFF)
    set(LLAMA_BUILD_EXAMPLES  OFF)
    set(LLAMA_BUILD_APP       OFF)
    set(LLAMA_BUILD_UI        OFF) # would run npm
    set(LLAMA_USE_PREBUILT_UI OFF) # would download
    set(LLAMA_TOOLS_INSTALL   OFF)
    set(LLAMA_UI_GZIP         OFF) # clients that ask for no gzip, curl among them, would get an error for the page
    set(GGML_CCACHE           OFF) # ggml/upstream/ccache.cmake does it
    option(GGML_RPC "ggml: RPC backend and rpc-server" ON)

    # without it upstream warns; HTTPS is an extra here
    find_package(OpenSSL QUIET)
    option(LLAMA_OPENSSL "llama: HTTPS" ${OPENSSL_FOUND})

    if (GGML_CUDA AND NOT CMAKE_CUDA_COMPILER)
        find_package(CUDAToolkit QUIET)
        if (CUDAToolkit_NVCC_EXECUTABLE)
            set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}" CACHE FILEPATH "CUDA compiler")
        endif()
    endif()

    add_subdirectory("${dir}" "${CMAKE_BINARY_DIR}/upstream" EXCLUDE_FROM_ALL)

    # gcc optimises away most of the tile configuration that this llama.cpp makes for AMX: the first product with quantised weights
    # ends in SIGILL on CPUs that have it (upstream's pull request 26954)
    if (TARGET ggml-cpu AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        include(CheckCCompilerFlag)
        check_c_compiler_flag(-mno-amx-tile HWKV_HAS_AMX_FLAGS)
        if (HWKV_HAS_AMX_FLAGS)
            target_compile_options(ggml-cpu PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
        endif()
    endif()

    # gcc 12 warns about its own AVX-512 headers, hundreds of lines of it
    if (TARGET ggml-cpu AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        target_compile_options(ggml-cpu PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()

    if (TARGET ggml-rpc-server)
        set_target_properties(ggml-rpc-server PROPERTIES OUTPUT_NAME rpc-server)
    endif()
endfunction()
