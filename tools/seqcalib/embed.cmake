# A script: cmake -DIN=... -DOUT=... -DNAME=... -P embed.cmake writes a file as a C array that ends in a zero byte.

file(READ "${IN}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REPEAT "0x..," 32 row)
string(REGEX REPLACE "(${row})" "\\1\n" bytes "${bytes}")
get_filename_component(file "${IN}" NAME)
file(WRITE "${OUT}" "// made from ${file}\nextern const char ${NAME}[];\nconst char ${NAME}[] = {\n${bytes}\n0x00 };\n")
