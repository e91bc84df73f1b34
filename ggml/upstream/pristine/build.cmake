# cmake -DDIR=build/pristine -DGENERATOR=Ninja -DOPTIONS=options.cmake -DTARGETS=a,b -DJOBS=2 -P build.cmake

string(REPLACE "," ";" TARGETS "${TARGETS}")

# options of ours that changed must reach the pristine build, or the two are not comparable
file(SHA256 "${OPTIONS}" want)
set(found "")
if (EXISTS "${DIR}/.configured" AND EXISTS "${DIR}/build.ninja")
    file(READ "${DIR}/.configured" found)
endif()
if (NOT found STREQUAL want)
    file(REMOVE "${DIR}/.configured" "${DIR}/CMakeCache.txt")
    execute_process(COMMAND "${CMAKE_COMMAND}" -C "${OPTIONS}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${DIR}" -G "${GENERATOR}"
        RESULT_VARIABLE res)
    if (NOT res EQUAL 0)
        message(FATAL_ERROR "the pristine llama.cpp could not be configured in ${DIR}")
    endif()
    file(WRITE "${DIR}/.configured" "${want}")
endif()

execute_process(COMMAND "${CMAKE_COMMAND}" --build "${DIR}" --parallel "${JOBS}" --target ${TARGETS} RESULT_VARIABLE res)
if (NOT res EQUAL 0)
    message(FATAL_ERROR "the pristine llama.cpp could not be built in ${DIR}")
endif()
