# The program of the speed bench: ours here, the pristine one in ggml/upstream/pristine/CMakeLists.txt.

add_executable(speed-run "${CMAKE_CURRENT_LIST_DIR}/speed-run.c")
hwkv_target_flags(speed-run)
target_compile_definitions(speed-run PRIVATE SPEED_RUN_POLICY)
target_link_libraries(speed-run PRIVATE llama ggml)

add_custom_target(bench-programs COMMAND ${HWKV_PRISTINE_BUILD} -DTARGETS=speed-run -P "${HWKV_PRISTINE_SCRIPT}"
    USES_TERMINAL VERBATIM COMMENT "Building the pristine program of the speed bench")
add_dependencies(bench-programs speed-run llama-kv-policy)
