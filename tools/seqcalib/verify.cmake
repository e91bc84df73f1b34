# text, progress, signals and comparison, which the tools of this folder share, and llama-kv-verify

find_package(Threads REQUIRED)

add_library(seqcalib-verify STATIC text.c progress.c tool.c verify.c)
hwkv_target_flags(seqcalib-verify)
target_include_directories(seqcalib-verify PUBLIC "${CMAKE_CURRENT_LIST_DIR}")
target_link_libraries(seqcalib-verify PUBLIC llama Threads::Threads m)

add_executable(llama-kv-verify kv-verify.c kv-verify-args.c kv-verify-print.c ../kv-policy/args.c)
hwkv_target_flags(llama-kv-verify)
target_link_libraries(llama-kv-verify PRIVATE seqcalib-verify)
