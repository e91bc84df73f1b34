# The page at `/`. Upstream embeds what it finds in its own tools/ui/dist into llama-server, so the files of page/ are
# brought there: nothing of them is compiled, and a change is in the next build.
#
# Included by ggml/CMakeLists.txt, it adds the target; run with -P, it brings the files.

if (NOT CMAKE_SCRIPT_MODE_FILE)
    set(HWKV_PAGE_DIR  "${CMAKE_CURRENT_LIST_DIR}/page")
    set(HWKV_PAGE_DIST "${HWKV_UPSTREAM_DIR}/tools/ui/dist")
    file(GLOB_RECURSE HWKV_PAGE_FILES CONFIGURE_DEPENDS "${HWKV_PAGE_DIR}/*")
    add_custom_command(OUTPUT "${HWKV_PAGE_DIST}/index.html"
        COMMAND "${CMAKE_COMMAND}" "-DPAGE=${HWKV_PAGE_DIR}" "-DDIST=${HWKV_PAGE_DIST}" -P "${CMAKE_CURRENT_LIST_FILE}"
        DEPENDS ${HWKV_PAGE_FILES} "${CMAKE_CURRENT_LIST_FILE}"
        COMMENT "Bringing the page" VERBATIM)
    add_custom_target(hwkv-page DEPENDS "${HWKV_PAGE_DIST}/index.html")
    add_dependencies(llama-ui-assets hwkv-page)
    return()
endif()

file(GLOB_RECURSE files RELATIVE "${PAGE}" "${PAGE}/*")
list(SORT files)
set(hashes "")
foreach (name IN LISTS files)
    file(SHA256 "${PAGE}/${name}" hash)
    string(APPEND hashes "${name} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING "${hash}" 0 12 hash)

file(REMOVE_RECURSE "${DIST}")
file(MAKE_DIRECTORY "${DIST}")
file(COPY "${PAGE}/sw.js" DESTINATION "${DIST}")

# upstream's script embeds nothing unless it finds files of these names, which its own page has and ours does not need
foreach (name build.json version.json)
    file(WRITE "${DIST}/${name}" "{}\n")
endforeach()
foreach (name bundle.js bundle.css workbox.js)
    file(WRITE "${DIST}/${name}" "/* not used */\n")
endforeach()

# browsers keep everything but index.html for a year, so the folder's name changes with its content
file(COPY "${PAGE}/assets/" DESTINATION "${DIST}/assets-${hash}")
foreach (name manifest.webmanifest index.html) # the last one last: it tells ninja that all is there
    file(READ "${PAGE}/${name}" text)
    string(REPLACE "\"assets/" "\"assets-${hash}/" text "${text}")
    file(WRITE "${DIST}/${name}" "${text}")
endforeach()
