# ccache as launcher when it is there. Paths below the base are hashed relative to the build folder, so that another
# clone and the pristine build hit the same entries.

find_program(HWKV_CCACHE ccache)

if (HWKV_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    string(FIND "${CMAKE_BINARY_DIR}/" "${CMAKE_SOURCE_DIR}/" HWKV_BUILD_INSIDE)
    if (HWKV_BUILD_INSIDE EQUAL 0)
        set(HWKV_CCACHE_BASE "${CMAKE_SOURCE_DIR}")
    else()
        set(HWKV_CCACHE_BASE "${CMAKE_BINARY_DIR}")
    endif()
    set(HWKV_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${HWKV_CCACHE_BASE}" CCACHE_NOHASHDIR=1
        CCACHE_SLOPPINESS=time_macros "${HWKV_CCACHE}")
    foreach (lang C CXX CUDA)
        set(CMAKE_${lang}_COMPILER_LAUNCHER "${HWKV_LAUNCHER}" CACHE STRING "compiler launcher")
    endforeach()
endif()
