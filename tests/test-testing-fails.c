// Proves that a failed check fails the program: expected to exit with an error.

#include "testing.h"

int main(void) {
    CHECK(1 + 1 == 2);
    CHECK_EQ_INT(1 + 1, 3);
    return testing_result();
}
