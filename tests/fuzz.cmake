# The fuzz target of the policy reader. HWKV_LIBFUZZER=ON (clang only) builds it with libFuzzer's feedback; else our
# own driver mutates the corpus: for a minute under sanitizers, a moment otherwise. Longer: fuzz-policy --seconds N.

option(HWKV_LIBFUZZER "Build the fuzz target with libFuzzer (needs clang)" OFF)

set(HWKV_FUZZ_DIRS ${CMAKE_CURRENT_LIST_DIR}/data/policy-ok ${CMAKE_CURRENT_LIST_DIR}/data/policy-bad)

if (HWKV_LIBFUZZER)
    if (NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "HWKV_LIBFUZZER: found the compiler ${CMAKE_C_COMPILER_ID}, expected clang (-DCMAKE_C_COMPILER=clang)")
    endif()
    # the library is to be covered, so it is instrumented too
    target_compile_options(hwkv PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(hwkv INTERFACE -fsanitize=fuzzer-no-link)
    add_executable(fuzz-policy ${CMAKE_CURRENT_LIST_DIR}/fuzz-policy.c)
    target_compile_options(fuzz-policy PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz-policy PRIVATE -fsanitize=fuzzer)
    # libFuzzer writes what it finds to the first directory, which must not be the corpus itself
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fuzz-corpus)
    set(HWKV_FUZZ_ARGS -seed=1 ${CMAKE_CURRENT_BINARY_DIR}/fuzz-corpus ${HWKV_FUZZ_DIRS})
    set(HWKV_FUZZ_SECONDS -max_total_time=)
else()
    add_executable(fuzz-policy ${CMAKE_CURRENT_LIST_DIR}/fuzz-policy.c ${CMAKE_CURRENT_LIST_DIR}/fuzz-main.c)
    set(HWKV_FUZZ_ARGS --seed 1 ${HWKV_FUZZ_DIRS})
    set(HWKV_FUZZ_SECONDS "--seconds;")
endif()
hwkv_target_flags(fuzz-policy)
target_link_libraries(fuzz-policy PRIVATE hwkv)
set_target_properties(fuzz-policy PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")

if (HWKV_SANITIZE)
    add_test(NAME fuzz-policy COMMAND fuzz-policy ${HWKV_FUZZ_SECONDS}60 ${HWKV_FUZZ_ARGS})
else()
    add_test(NAME fuzz-policy COMMAND fuzz-policy ${HWKV_FUZZ_SECONDS}2 ${HWKV_FUZZ_ARGS})
endif()
# a minute of work on a busy machine
set_tests_properties(fuzz-policy PROPERTIES LABELS unit TIMEOUT 300)
