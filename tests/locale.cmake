# A locale with a decimal comma for test-locale and pytest, made by the build: few machines have one installed. Without localedef or its
# sources (Debian's package locales) the tests say that they are skipped.

set(HWKV_LOCALE_DIR "${CMAKE_CURRENT_BINARY_DIR}/locale")

find_program(HWKV_LOCALEDEF localedef)
if (HWKV_LOCALEDEF)
    # localedef exits with 1 for warnings too: what counts is whether the locale can be used
    add_custom_command(OUTPUT "${HWKV_LOCALE_DIR}/.made"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${HWKV_LOCALE_DIR}"
        COMMAND sh -c "\"$0\" --no-archive -i de_DE -f UTF-8 \"$1\" || true" "${HWKV_LOCALEDEF}" "${HWKV_LOCALE_DIR}/de_DE.UTF-8"
        COMMAND "${CMAKE_COMMAND}" -E touch "${HWKV_LOCALE_DIR}/.made"
        VERBATIM)
    add_custom_target(test-locale-data ALL DEPENDS "${HWKV_LOCALE_DIR}/.made")
endif()

set_tests_properties(test-locale PROPERTIES ENVIRONMENT "LOCPATH=${HWKV_LOCALE_DIR}" SKIP_RETURN_CODE 77)
