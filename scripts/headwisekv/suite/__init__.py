"""llama.cpp's own server tests on the pristine build and on ours."""
