# The fuzz targets: readers of what anybody may have written. HWKV_LIBFUZZER=ON (clang only) builds them with libFuzzer's feedback;
# else our own driver makes the inputs: for a minute under sanitizers, a moment otherwise. Longer: fuzz-policy --seconds N.

option(HWKV_LIBFUZZER "Build the fuzz targets with libFuzzer (needs clang)" OFF)

if (HWKV_LIBFUZZER)
    if (NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "HWKV_LIBFUZZER: found the compiler ${CMAKE_C_COMPILER_ID}, expected clang (-DCMAKE_C_COMPILER=clang)")
    endif()
    # the library is to be covered, so it is instrumented too
    target_compile_options(hwkv PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(hwkv INTERFACE -fsanitize=fuzzer-no-link)
endif()

# hwkv_add_fuzz(NAME MAKER ARG...): NAME.c is the target, MAKER makes its inputs from the arguments
function(hwkv_add_fuzz name maker)
    set(seconds 2)
    if (HWKV_SANITIZE)
        set(seconds 60)
    endif()
    add_executable(${name} ${CMAKE_CURRENT_LIST_DIR}/${name}.c)
    if (HWKV_LIBFUZZER)
        target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
        # libFuzzer writes what it finds to the first directory, which must not be the corpus itself
        file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name}-corpus)
        set(command ${name} -max_total_time=${seconds} -seed=1 ${CMAKE_CURRENT_BINARY_DIR}/${name}-corpus ${ARGN})
    else()
        target_sources(${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/fuzz-main.c ${maker})
        set(command ${name} --seconds ${seconds} --seed 1 ${ARGN})
    endif()
    hwkv_target_flags(${name})
    target_link_libraries(${name} PRIVATE hwkv)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")
    add_test(NAME ${name} COMMAND ${command})
    # a minute of work on a busy machine
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
endfunction()

hwkv_add_fuzz(fuzz-policy ${CMAKE_CURRENT_LIST_DIR}/fuzz-text.c ${HWKV_TEST_DATA}/policy-ok ${HWKV_TEST_BAD})
add_dependencies(fuzz-policy policy-bad)
hwkv_add_fuzz(fuzz-slot-file "")
