/* Writes kernels for ever, each field following from its number, so that a mixture is seen. */
#include "gpuwhy.h"

int main(void) {
    uint64_t i;
    for (i = 1;; i++)
        gpuwhy_kernel("storm", (uint16_t)i, (uint32_t)(i * 3), i, i * 5, i * 5 + i * 7);
}
