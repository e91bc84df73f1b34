# Gate 0: the patched build without a policy against the pristine package, byte for byte.

add_executable(gate0 "${CMAKE_CURRENT_LIST_DIR}/gate0.c")
target_link_libraries(gate0 PRIVATE llama)
set_target_properties(gate0 PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")

set(GATE0 "${Python3_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/compare.py" $<TARGET_FILE:gate0> "${HWKV_PRISTINE_DIR}/bin/gate0")

add_test(NAME gate0-pristine COMMAND ${HWKV_PRISTINE_BUILD} -DTARGETS=gate0 -P "${HWKV_PRISTINE_SCRIPT}")
add_test(NAME gate0          COMMAND ${GATE0})
add_test(NAME gate0-can-fail COMMAND ${GATE0} --before "Once upon a time. ")

set_tests_properties(gate0-pristine PROPERTIES LABELS bridge TIMEOUT 3600 FIXTURES_SETUP pristine)
set_tests_properties(gate0 gate0-can-fail PROPERTIES LABELS bridge TIMEOUT 900 FIXTURES_REQUIRED pristine SKIP_RETURN_CODE 77)
set_tests_properties(gate0-can-fail PROPERTIES PASS_REGULAR_EXPRESSION "outputs differ in mode fa-on f16 prompt 0")
