// One line for `--version` of every tool; the only header of ours that llama.cpp's common library includes.

#ifndef HWKV_VERSION_H
#define HWKV_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

// "HeadWiseKV 0.1.0 (llama.cpp 0c1e57098, package 0.3.36, patches 0123456789ab)"; static text
const char * hwkv_version_line(void);

#ifdef __cplusplus
}
#endif

#endif // HWKV_VERSION_H
