# The HTML report and the statistics as part of a target:
#
#   include(tools/seqcalib/embed.cmake)
#   sc_add_report(llama-seqcalib)
#
# Run as a script (cmake -DIN=... -DOUT=... -DNAME=... -P) it writes a file as a C array that ends in a zero byte.

if (CMAKE_SCRIPT_MODE_FILE)
    file(READ "${IN}" bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(REPEAT "0x..," 32 row)
    string(REGEX REPLACE "(${row})" "\\1\n" bytes "${bytes}")
    get_filename_component(file "${IN}" NAME)
    file(WRITE "${OUT}" "// made from ${file}\nextern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}\n0x00 };\n")
    return()
endif()

set(SC_REPORT_DIR "${CMAKE_CURRENT_LIST_DIR}")

function(sc_add_report target)
    foreach (type html js)
        set(out "${CMAKE_CURRENT_BINARY_DIR}/${target}-report-${type}.c")
        add_custom_command(OUTPUT "${out}"
            COMMAND "${CMAKE_COMMAND}" "-DIN=${SC_REPORT_DIR}/report.${type}" "-DOUT=${out}" "-DNAME=sc_report_${type}_text" -P "${SC_REPORT_DIR}/embed.cmake"
            DEPENDS "${SC_REPORT_DIR}/report.${type}" "${SC_REPORT_DIR}/embed.cmake"
            COMMENT "Embedding report.${type}" VERBATIM)
        target_sources(${target} PRIVATE "${out}")
    endforeach()
    target_sources(${target} PRIVATE "${SC_REPORT_DIR}/report.c" "${SC_REPORT_DIR}/statistics.c")
    target_include_directories(${target} PRIVATE "${SC_REPORT_DIR}")
endfunction()
